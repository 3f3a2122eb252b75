// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The graph: uPlot, with caps, and a line at the selected time.
 */
import uPlot from "../vendor/uplot/uPlot.esm.js";
import {colour, pathColour} from "./colours.mjs";
import {clock, unitOf} from "./format.mjs";
import {linesToDraw, pathName} from "./series.mjs";
import {capLabels} from "./sentences.mjs";

const HEIGHT = 300;
const NARROW_HEIGHT = 220;
const NARROW_WIDTH = 560;

/**
 * Returns the upper end of the axis; 0 before anything is drawn.
 * @param {uPlot} plot
 */
function axisTop(plot) {
  return plot.scales.y.max ?? 0;
}

export class Chart {
  /** @type {uPlot|null} */
  #plot = null;
  #shape = "";
  /** @type {number|null} */
  #selected = null;
  /** @type {import("./series.mjs").Line[]} */
  #lines = [];
  /** @type {import("./series.mjs").CapLine[]} */
  #caps = [];

  /**
   * @param {HTMLElement} parent
   * @param {(index: number|null) => void} onPoint called with the pointer's index, null when it leaves
   * @param {(index: number) => void} onClick called with the clicked index
   */
  constructor(parent, onPoint, onClick) {
    this.parent = parent;
    this.onPoint = onPoint;
    this.onClick = onClick;
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(parent);
  }

  #size() {
    const width = Math.max(200, this.parent.clientWidth);
    return {width, height: width < NARROW_WIDTH ? NARROW_HEIGHT : HEIGHT};
  }

  /**
   * @param {import("./series.mjs").Series} series @param {string} direction @param {number|null} selected a time
   * @returns {{morePaths: number, moreCaps: number, highCaps: number}} how many are not shown
   */
  draw(series, direction, selected) {
    const {lines, caps, top, ...more} = linesToDraw(series, direction);
    this.#selected = selected;
    this.#lines = lines;
    this.#caps = caps;
    const shape = JSON.stringify([...this.#lines, ...this.#caps].map(each => each.key)) + series.span;
    /** @type {uPlot.AlignedData} */
    const data = [series.times, ...this.#lines.map(each => each.values), ...this.#caps.map(each => each.values)];
    const end = series.times.at(-1) ?? 0;
    const plot = this.#plot !== null && shape === this.#shape ? this.#plot : this.#create(shape, data);
    plot.batch(() => {
      plot.setData(data, false);
      plot.setScale("x", {min: end - series.span, max: end});
      plot.setScale("y", {min: 0, max: top});
    });
    return more;
  }

  /** Let the next draw() create the graph again, for example in dark colours. */
  forget() {
    this.#shape = "";
  }

  /** @param {string} shape @param {uPlot.AlignedData} data */
  #create(shape, data) {
    this.#plot?.destroy();
    this.#shape = shape;
    const ink = colour("--muted");
    const grid = {stroke: colour("--grid"), width: 1};
    const font = "12px system-ui, sans-serif";
    const lines = this.#lines.map(each => ({
      label: pathName(each.path), stroke: pathColour(each.path), width: 2, spanGaps: false, points: {show: false},
    }));
    const caps = this.#caps.map(each => ({
      label: `cap by ${each.rule}`, stroke: pathColour(each.path), fill: `${pathColour(each.path)}1c`, width: 1.5, dash: [6, 5], spanGaps: false,
      points: {show: false}, paths: uPlot.paths.stepped?.({align: 1}),
    }));
    const plot = new uPlot({
      ...this.#size(),
      legend: {show: false},
      cursor: {y: false, drag: {x: false, y: false}, points: {size: 7}},
      // The right margin has room for half of the label at the end.
      padding: [22, 32, 0, 0],
      scales: {x: {time: true, auto: false}, y: {auto: false}},
      series: [{}, ...lines, ...caps],
      axes: [
        {stroke: ink, font, grid: {show: false}, ticks: {stroke: colour("--grid"), width: 1, size: 5}, space: 70,
          values: (_, times) => times.map(clock)},
        {stroke: ink, font, grid, ticks: {show: false}, size: 48, space: 40,
          values: (plot, rates) => {
            const {factor} = unitOf(axisTop(plot));
            return rates.map(value => String(Number((value / factor).toFixed(3))));
          }},
      ],
      hooks: {
        draw: [plot => this.#decorate(plot)],
        setCursor: [plot => this.onPoint((plot.cursor.left ?? -1) >= 0 ? plot.cursor.idx ?? null : null)],
      },
    }, data, this.parent);
    plot.over.addEventListener("click", () => {
      if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) this.onClick(plot.cursor.idx);
    });
    this.#plot = plot;
    return plot;
  }

  /**
   * Draws the labels of caps at their right end, and the line at the selected time.
   * @param {uPlot} plot
   */
  #decorate(plot) {
    const context = plot.ctx;
    const ratio = devicePixelRatio || 1;
    context.save();
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    context.textAlign = "right";
    context.textBaseline = "bottom";
    const {left, top, width, height} = plot.bbox;
    context.fillStyle = colour("--muted");
    context.textAlign = "left";
    context.fillText(unitOf(axisTop(plot)).unit, 8 * ratio, top - 6 * ratio);
    context.textAlign = "right";
    /** @type {number[]} */
    const labelPositions = [];
    for (const each of this.#caps) {
      const value = each.values.at(-1) ?? null;
      if (each.latest === null || value === null || value > axisTop(plot)) continue;
      let y = Math.max(plot.valToPos(value, "y", true) - 3 * ratio, top + 14 * ratio);
      while (labelPositions.some(other => Math.abs(other - y) < 14 * ratio)) y += 15 * ratio;
      labelPositions.push(y);
      if (y > top + height) continue;
      const labels = capLabels(each.latest);
      const text = labels.find(label => context.measureText(label).width <= width - 12 * ratio) ?? labels[labels.length - 1];
      context.lineWidth = 4 * ratio;
      context.strokeStyle = colour("--surface");
      context.strokeText(text, left + width - 6 * ratio, y);
      context.fillStyle = pathColour(each.path);
      context.fillText(text, left + width - 6 * ratio, y);
    }
    if (this.#selected !== null) {
      const x = plot.valToPos(this.#selected, "x", true);
      if (x >= left && x <= left + width) {
        context.strokeStyle = colour("--ink");
        context.lineWidth = 1.5 * ratio;
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, top + height);
        context.stroke();
      }
    }
    context.restore();
  }
}
