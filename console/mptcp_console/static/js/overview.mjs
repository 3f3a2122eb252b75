/**
 * The live page: figures, the graph, what was at one time.
 */
import {get} from "./api.mjs";
import {Chart} from "./chart.mjs";
import {colourNumber, meet} from "./colours.mjs";
import {byId, facts, fill, keyed, make, setText} from "./dom.mjs";
import {clock, counted, lastTime, rate} from "./format.mjs";
import {answered, show} from "./happenings.mjs";
import {Series, pathName} from "./series.mjs";
import {capText, momentText, notDrawn} from "./words.mjs";

/** @typedef {import("./types.mjs").Moment} Moment */
/** @typedef {import("./types.mjs").Overview} Overview */

const FINE = 600;
const NEARBY = 7;
const AROUND = 15;
const TABLE_ROWS = 20;
const COARSE_RELOAD = 10_000;

export class OverviewPage {
  #series = new Series(FINE, 1);
  #direction = "down";
  /** @type {number|null} the time that is held */
  #held = null;
  /** @type {number|null} the index at which the pointer is */
  #pointed = null;
  /** @type {import("./types.mjs").Happening[]} the newest first */
  #latest = [];
  /** @type {import("./types.mjs").Happening[]|null} those around the time that is held */
  #around = null;
  #graph = byId("graph");
  #chart = new Chart(this.#graph, index => this.#point(index), index => this.#hold(this.#series.times[index]));
  #loaded = 0;
  #visible = false;
  #isStale = false;

  constructor() {
    for (const input of document.querySelectorAll("input[name=direction]")) {
      input.addEventListener("change", () => {
        this.#direction = /** @type {HTMLInputElement} */ (input).value;
        this.draw();
      });
    }
    for (const input of document.querySelectorAll("input[name=range]")) {
      input.addEventListener("change", () => this.#show(Number(/** @type {HTMLInputElement} */ (input).value)));
    }
    byId("goto").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      const time = lastTime(byId("goto-time").value, Date.now() / 1000);
      if (time !== null) this.#goTo(time);
    });
    byId("to-now").addEventListener("click", () => {
      this.#release();
      this.#graph.focus();
    });
    byId("as-table").addEventListener("toggle", () => this.#table());
    this.#graph.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#key(event));
  }

  /** @param {boolean} visible whether it is the page that is shown */
  show(visible) {
    this.#visible = visible;
    if (visible) this.draw();
  }

  /** Take the history from the console: at the beginning, and after a gap. */
  async load() {
    const wanted = this.#series;
    const before = this.#latest;
    try {
      const now = Math.ceil(Date.now() / 1000) + 5;
      const columns = await get("history", {step: wanted.step, from: now - wanted.span - 10});
      const events = await get("events", {limit: NEARBY});
      if (wanted !== this.#series) return;
      meet(columns.paths.map((/** @type {{path: string|null}} */ each) => each.path));
      wanted.load(columns);
      this.#latest = answered(events.events, this.#latest, before, NEARBY);
      this.#loaded = Date.now();
    } catch {
      // The feed says so already; the next moment begins the graph anew.
    }
    this.draw();
  }

  /** @param {Moment} moment */
  push(moment) {
    this.#latest = [...moment.events].reverse().concat(this.#latest).slice(0, NEARBY);
    if (moment.now !== null) {
      meet(moment.now.paths.map(each => each.path));
      if (this.#series.step === 1) this.#series.push(moment.now);
      else if (Date.now() - this.#loaded > COARSE_RELOAD) this.load();
      this.#tiles(moment.now);
    }
    this.draw();
  }

  /** @param {boolean} isStale whether what is shown is not what is now */
  age(isStale) {
    if (isStale === this.#isStale) return;
    this.#isStale = isStale;
    this.draw();
  }

  /** Draw anew with the colours of now. */
  recolour() {
    this.#chart.forget();
    this.draw();
  }

  draw() {
    if (!this.#visible) return;
    const note = notDrawn(this.#chart.draw(this.#series, this.#direction, this.#held));
    byId("not-drawn").hidden = note === "";
    setText(byId("not-drawn"), note);
    this.#moment();
    this.#legend();
    this.#table();
  }

  /** @param {number} span */
  async #show(span) {
    const step = span > FINE ? 10 : 1;
    if (this.#series.step !== step) {
      this.#series = new Series(span, step);
      await this.load();
    } else if (this.#series.span !== span) {
      this.#series = new Series(span, step);
      await this.load();
    }
    this.draw();
  }

  /** @param {number} time */
  async #goTo(time) {
    const wanted = Date.now() / 1000 - time > this.#series.span - 5 ? 3600 : this.#series.span;
    const input = /** @type {HTMLInputElement} */ (document.querySelector(`input[name=range][value="${wanted}"]`));
    input.checked = true;
    await this.#show(wanted);
    this.#hold(time);
    this.#graph.focus();
  }

  /** @param {number|null} index */
  #point(index) {
    if (index === this.#pointed) return;
    this.#pointed = index;
    this.#moment();
  }

  /** @param {number|undefined} time */
  async #hold(time) {
    if (time === undefined) return;
    this.#held = time;
    this.#around = null;
    this.draw();
    try {
      const events = await get("events", {from: Math.max(0, time - AROUND), to: time + AROUND, limit: 100});
      if (this.#held !== time) return;
      this.#around = events.events.reverse();
    } catch {
      this.#around = [];
    }
    this.#moment();
  }

  #release() {
    this.#held = null;
    this.#around = null;
    this.#pointed = null;
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const {times, step} = this.#series;
    if (times.length === 0) return;
    const [first, last] = [times[0], Number(times.at(-1))];
    const from = this.#held ?? last;
    const moves = {
      ArrowLeft: from - step, ArrowDown: from - step, ArrowRight: from + step, ArrowUp: from + step,
      PageUp: from + 30 * step, PageDown: from - 30 * step, Home: first, End: last,
    };
    if (event.key === "Escape") {
      this.#release();
    } else if (event.key in moves) {
      this.#hold(Math.min(last, Math.max(first, moves[/** @type {keyof typeof moves} */ (event.key)])));
    } else {
      return;
    }
    event.preventDefault();
  }

  #moment() {
    const {times} = this.#series;
    const index = this.#held !== null ? this.#series.indexOf(this.#held) : this.#pointed ?? times.length - 1;
    const isNow = this.#held === null && this.#pointed === null;
    const time = this.#held ?? times[index] ?? 0;
    const kept = times.length > 0 && time >= times[0] - this.#series.step && time <= Number(times.at(-1)) + 30;
    const paths = kept ? this.#series.at(index, this.#direction) : [];
    const now = this.#isStale ? `Last known: ${clock(time)}` : "Now";
    setText(byId("title-moment"), isNow ? now : `At ${clock(time)}`);
    byId("to-now").hidden = this.#held === null;
    const body = byId("moment").tBodies[0];
    keyed(body, paths, each => String(each.path), each => momentRow(each), (row, each) => {
      const caps = each.caps.map(cap =>
        `${capText(cap)}: ${cap.rule}, ${counted(cap.capped, "subflow")}`).join("; ");
      fill(row, [each.rate === null ? "unknown" : rate(each.rate), caps || "none"]);
      row.cells[2].className = caps ? "capped" : "none";
    });
    const empty = paths.length === 0;
    body.querySelector(":scope > .empty")?.remove();
    if (empty) {
      const text = times.length === 0 ? "Nothing is known yet." : "Nothing is kept of this time.";
      body.append(make("tr", {class: "empty"}, make("td", {colspan: "3"}, text)));
    }
    setText(byId("title-nearby"), this.#held === null ? "Latest events" : `Events around ${clock(time)}`);
    const none = this.#held === null ? "Nothing happened yet." : `Nothing happened within ${AROUND} s of it.`;
    show(byId("nearby"), this.#held === null ? this.#latest : this.#around ?? [], Date.now() / 1000, none);
    const graph = this.#graph;
    graph.setAttribute("aria-valuemin", String(times[0] ?? 0));
    graph.setAttribute("aria-valuemax", String(times.at(-1) ?? 0));
    graph.setAttribute("aria-valuenow", String(time));
    // While nobody holds a time it would be read out each second.
    if (this.#held !== null || !graph.matches(":focus")) graph.setAttribute("aria-valuetext", momentText(time, paths));
  }

  #legend() {
    const index = this.#series.times.length - 1;
    keyed(byId("legend"), this.#series.at(index, this.#direction), each => String(each.path),
      each => make("li", {}, make("span", {class: `swatch c${colourNumber(each.path)}`, "aria-hidden": "true"}),
        make("strong", {}, pathName(each.path)), make("span", {class: "legend-rate"}), make("span", {class: "legend-cap"})),
      (item, each) => {
        setText(item.children[2], rate(each.rate));
        setText(item.children[3], each.caps.map(cap => `cap ${capText(cap)}`).join(", "));
      });
  }

  #table() {
    if (!byId("as-table").open) return;
    const {times} = this.#series;
    const lines = this.#series.lines(this.#direction);
    const every = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const rows = [];
    for (let index = times.length - 1; index >= 0; index -= every) rows.push(index);
    const head = make("tr", {}, make("th", {scope: "col"}, "Time"),
      ...lines.map(each => make("th", {scope: "col", class: "number"}, pathName(each.path))));
    const body = rows.map(index => {
      const cells = this.#series.at(index, this.#direction).map(each => make("td", {class: "number"},
        `${each.rate === null ? "unknown" : rate(each.rate)}${each.caps.map(cap => `, cap ${capText(cap)}`).join("")}`));
      return make("tr", {}, make("th", {scope: "row"}, clock(times[index])), ...cells);
    });
    byId("graph-table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  }

  /** @param {Overview} now */
  #tiles(now) {
    const sum = (/** @type {string} */ direction) =>
      now.paths.filter(each => each.direction === direction).reduce((all, each) => all + each.rate, 0);
    const coming = now.landing > 0 ? `, ${now.landing} coming` : "";
    facts(byId("tiles"), [
      ["Down", rate(sum("down"))],
      ["Up", rate(sum("up"))],
      ["Connections", now.connections.toLocaleString("en")],
      ["Subflows", (now.subflows.active ?? 0).toLocaleString("en")],
      ["Clients", now.clients.toLocaleString("en")],
      ["Capped", `${now.capped.toLocaleString("en")}${coming}`],
    ]);
  }
}

/** @param {import("./series.mjs").AtTime} each */
function momentRow(each) {
  const name = make("th", {scope: "row"}, pathLabel(each.path));
  return make("tr", {}, name, make("td", {class: "number"}), make("td"));
}

/** @param {string|null} path @returns {HTMLElement} its name, with its colour */
export function pathLabel(path) {
  return make("span", {class: "path"}, make("span", {class: `swatch c${colourNumber(path)}`, "aria-hidden": "true"}),
    pathName(path));
}
