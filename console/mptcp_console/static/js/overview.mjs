// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The live page: figures, the graph, and the state at the selected time.
 */
import {get} from "./api.mjs";
import {showBudgets} from "./budgets.mjs";
import {Chart} from "./chart.mjs";
import {colourNumber, assignColours} from "./colours.mjs";
import {byId, facts, fill, updateChildren, make, setText} from "./dom.mjs";
import {clock, counted, timeInZone, lastTime, rate, size} from "./format.mjs";
import {mergeNewest, show} from "./event_lists.mjs";
import {NEARBY_SECONDS, eventsNote, noEventsText, noRatesText} from "./selected_time.mjs";
import {Series, pathName} from "./series.mjs";
import {now} from "./server_time.mjs";
import {eventsAddress} from "./view.mjs";
import {capText, momentText, notDrawnText} from "./sentences.mjs";

/** @typedef {import("./types.mjs").Snapshot} Snapshot */
/** @typedef {import("./types.mjs").Overview} Overview */
/** @typedef {{time: number, state: "requested"|"failed"|"known", why: string, series: Series, since: number|null}} StoredState */

/** Seconds for which the console keeps one value per second. */
const FINE_SECONDS = 600;
const MAX_LATEST = 7;
const MAX_NEARBY = 100;
const TABLE_ROWS = 20;
/** Milliseconds: an arrow key that is held down causes a request only when it is released. */
const KEY_PAUSE_MS = 80;

export class OverviewPage {
  #series = new Series(FINE_SECONDS, 1);
  #direction = "down";
  /** @type {number|null} the selected time */
  #selected = null;
  /** @type {number|null} the pointer's index */
  #hovered = null;
  /** @type {import("./types.mjs").LoggedEvent[]} the newest first */
  #latest = [];
  /** @type {import("./selected_time.mjs").Nearby} the events around the selected time */
  #nearby = {state: "requested"};
  /** @type {StoredState|null} rates and caps at a selected time that the graph no longer shows */
  #stored = null;
  /** @type {Overview|null} the newest overview of the stream */
  #now = null;
  #requestTimer = 0;
  /** Whether events arrived during the request for the events around the selected time. */
  #eventsDuringRequest = false;
  #graph = byId("graph");
  #chart = new Chart(this.#graph, index => this.#hover(index), index => this.#select(this.#series.times[index]));
  /** When the history was requested, in steps of the series. */
  #loaded = 0;
  /** @type {number|null} time of the console's first value */
  #since = null;
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
      const time = lastTime(byId("goto-time").value, now());
      if (time !== null) this.#goTo(time);
    });
    byId("to-now").addEventListener("click", () => {
      this.#returnToNow();
      this.#graph.focus();
    });
    byId("as-table").addEventListener("toggle", () => this.#drawTable());
    this.#drawTiles(null);
    this.#graph.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#onKey(event));
  }

  /** @param {boolean} visible whether the page is shown */
  show(visible) {
    this.#visible = visible;
    if (visible) this.draw();
  }

  /** Load the history from the console: at the start, and after a gap. */
  async load() {
    const series = this.#series;
    const before = this.#latest;
    this.#loaded = Math.floor(now() / series.step);
    try {
      const columns = await get("history", {step: series.step, span: series.span + 10});
      const events = await get("events", {limit: MAX_LATEST});
      if (series !== this.#series) return;
      assignColours(columns.paths.map((/** @type {{path: string|null}} */ each) => each.path));
      series.load(columns);
      this.#since = columns.since;
      this.#latest = mergeNewest(events.events, this.#latest, before, MAX_LATEST);
    } catch {
      // The feed reports the failure; the next snapshot restarts the graph.
    }
    this.draw();
  }

  /** @param {Snapshot} snapshot */
  push(snapshot) {
    this.#latest = [...snapshot.events].reverse().concat(this.#latest).slice(0, MAX_LATEST);
    if (snapshot.now !== null) {
      assignColours(snapshot.now.paths.map(each => each.path));
      this.#now = snapshot.now;
      this.#series.push(snapshot.now);
      // This page stores the last value of ten seconds; the console's history has the mean.
      if (this.#series.step > 1 && Math.floor(snapshot.now.time / this.#series.step) > this.#loaded) this.load();
      this.#drawFigures(snapshot.now);
    } else if (snapshot.last !== null && this.#now === null) {
      // The page was opened after the throttler ended.
      assignColours(snapshot.last.paths.map(each => each.path));
      this.#now = snapshot.last;
      this.#drawFigures(snapshot.last);
    }
    if (this.#stored?.state === "failed") this.#stored = null;
    if (this.#selected !== null && this.#nearbyMayBeIncomplete(this.#selected, snapshot)) this.#loadNearby(this.#selected);
    // The pending answer may lack these events.
    this.#eventsDuringRequest ||= this.#nearby.state === "requested" && (snapshot.events.length > 0 || snapshot.more_events);
    this.draw();
  }

  /** @param {number} selected @param {Snapshot} snapshot @returns {boolean} whether events around *selected* may have come since the request */
  #nearbyMayBeIncomplete(selected, {events, more_events}) {
    if (this.#nearby.state === "failed") return true;
    return this.#nearby.state === "known" && this.#nearby.answer.time < selected + NEARBY_SECONDS + 2 && (events.length > 0 || more_events);
  }

  /** @param {boolean} isStale whether the shown state is outdated */
  setStale(isStale) {
    if (isStale === this.#isStale) return;
    this.#isStale = isStale;
    byId("view-live").classList.toggle("stale", isStale);
    this.draw();
  }

  /** Draw again with the current colours. */
  recolour() {
    this.#chart.forget();
    this.draw();
  }

  draw() {
    if (!this.#visible) return;
    const note = notDrawnText(this.#chart.draw(this.#series, this.#direction, this.#selected), this.#now?.more_rules ?? 0);
    byId("not-drawn").hidden = note === "";
    setText(byId("not-drawn"), note);
    this.#drawTime();
    this.#drawLegend();
    this.#drawTable();
  }

  /** @param {number} span */
  async #show(span) {
    const step = span > FINE_SECONDS ? 10 : 1;
    if (this.#series.step !== step || this.#series.span !== span) {
      this.#series = new Series(span, step);
      await this.load();
    }
    this.draw();
  }

  /** @param {number} time */
  async #goTo(time) {
    const ago = now() - time + 5;
    const span = ago <= this.#series.span ? this.#series.span : ago <= FINE_SECONDS ? FINE_SECONDS : 3600;
    const input = /** @type {HTMLInputElement} */ (document.querySelector(`input[name=range][value="${span}"]`));
    input.checked = true;
    await this.#show(span);
    this.#select(time);
    this.#graph.focus();
  }

  /** @param {number|null} index */
  #hover(index) {
    if (index === this.#hovered) return;
    this.#hovered = index;
    this.#drawTime();
  }

  /** @param {number|undefined} time */
  #select(time) {
    if (time === undefined) return;
    this.#selected = time;
    this.#nearby = {state: "requested"};
    this.#eventsDuringRequest = false;
    this.#stored = null;
    this.draw();
    clearTimeout(this.#requestTimer);
    this.#requestTimer = setTimeout(() => this.#loadNearby(time), KEY_PAUSE_MS);
  }

  /** @param {number} time the selected time */
  async #loadNearby(time) {
    try {
      const answer = await get("events", {from: Math.max(0, time - NEARBY_SECONDS), to: time + NEARBY_SECONDS, near: time, limit: MAX_NEARBY});
      if (this.#selected !== time) return;
      this.#nearby = {state: "known", answer};
      if (this.#eventsDuringRequest) {
        this.#eventsDuringRequest = false;
        this.#requestTimer = setTimeout(() => this.#loadNearby(time), KEY_PAUSE_MS);
      }
    } catch (error) {
      // The earlier answer is still valid.
      if (this.#selected !== time || this.#nearby.state === "known") return;
      this.#nearby = {state: "failed", why: /** @type {Error} */ (error).message};
    }
    this.#drawTime();
  }

  /**
   * Loads the rates and caps at a time that the graph no longer shows.
   * @param {number} time the selected time
   */
  async #loadStored(time) {
    const step = now() - time < FINE_SECONDS - 20 ? 1 : 10;
    /** @type {StoredState} */
    const stored = {time, state: "requested", why: "", series: new Series(60 * step, step), since: null};
    this.#stored = stored;
    try {
      const columns = await get("history", {step, from: Math.max(0, time - step), to: time});
      stored.series.load(columns);
      stored.since = columns.since;
      stored.state = "known";
    } catch (error) {
      stored.state = "failed";
      stored.why = /** @type {Error} */ (error).message;
    }
    if (this.#selected === time) this.#drawTime();
  }

  /**
   * Returns the rates and caps at the selected time.
   * @param {number} time @returns {{paths: import("./series.mjs").PathAtTime[], emptyText: string}} *emptyText*: shown without paths
   */
  #stateAt(time) {
    const pathsIn = (/** @type {Series} */ series) => series.covers(time) ? series.stateAt(series.indexOf(time), this.#direction) : null;
    const paths = pathsIn(this.#series);
    if (paths !== null) return {paths, emptyText: noRatesText(this.#since ?? this.#series.times[0], time)};
    if (this.#stored?.time !== time) this.#loadStored(time);
    const stored = this.#stored;
    if (stored === null || stored.state === "requested") return {paths: [], emptyText: "Loading …"};
    if (stored.state === "failed") return {paths: [], emptyText: `Not available: ${stored.why}.`};
    return {paths: pathsIn(stored.series) ?? [], emptyText: noRatesText(stored.since, time)};
  }

  #returnToNow() {
    clearTimeout(this.#requestTimer);
    this.#selected = null;
    this.#stored = null;
    this.#hovered = null;
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const {times, step} = this.#series;
    if (times.length === 0) return;
    const [first, last] = [times[0], Number(times.at(-1))];
    const from = this.#selected ?? last;
    const moves = {
      ArrowLeft: from - step, ArrowDown: from - step, ArrowRight: from + step, ArrowUp: from + step,
      PageUp: from + 30 * step, PageDown: from - 30 * step, Home: first, End: last,
    };
    if (event.key === "Escape") {
      this.#returnToNow();
    } else if (event.key in moves) {
      this.#select(Math.min(last, Math.max(first, moves[/** @type {keyof typeof moves} */ (event.key)])));
    } else {
      return;
    }
    event.preventDefault();
  }

  #drawTime() {
    const {times} = this.#series;
    const isNow = this.#selected === null && this.#hovered === null;
    const time = this.#selected ?? (this.#hovered !== null ? times[this.#hovered] : this.#now?.time ?? times.at(-1)) ?? 0;
    const {paths, emptyText} = this.#selected !== null ? this.#stateAt(this.#selected)
      : {paths: isNow ? this.#current() : this.#series.stateAt(Number(this.#hovered), this.#direction), emptyText: "No data yet."};
    const title = this.#isStale && time > 0 ? `Last known: ${clock(time)}` : "Now";
    const note = byId("tiles-note");
    note.hidden = !this.#isStale || this.#now === null;
    if (this.#now !== null) setText(note, `These are the last known figures, from ${clock(this.#now.time)}.`);
    setText(byId("title-moment"), isNow ? title : `At ${clock(time)}`);
    byId("to-now").hidden = this.#selected === null;
    const body = byId("moment").tBodies[0];
    updateChildren(body, paths, each => String(each.path), each => timeRow(each), (row, each) => {
      const caps = each.caps.map(cap =>
        `${capText(cap)}: ${cap.rule}, ${counted(cap.capped, "subflow")}`).join("; ");
      fill(row, [each.rate === null ? "unknown" : rate(each.rate), caps || "none"]);
      row.cells[2].className = caps ? "capped" : "none";
    });
    body.querySelector(":scope > .empty")?.remove();
    if (paths.length === 0) body.append(make("tr", {class: "empty"}, make("td", {colspan: "3"}, emptyText)));
    this.#drawEvents();
    const graph = this.#graph;
    graph.setAttribute("aria-valuemin", String(times[0] ?? 0));
    graph.setAttribute("aria-valuemax", String(times.at(-1) ?? 0));
    graph.setAttribute("aria-valuenow", String(Math.min(time, times.at(-1) ?? time)));
    // Without a selected time, a screen reader would read it out each second.
    if (this.#selected !== null || !graph.matches(":focus")) graph.setAttribute("aria-valuetext", momentText(time, paths));
  }

  /** @returns {import("./series.mjs").PathAtTime[]} the stream's last values; before the first, the history's */
  #current() {
    return this.#now !== null ? this.#series.currentState(this.#now, this.#direction)
      : this.#series.stateAt(this.#series.times.length - 1, this.#direction);
  }

  /** Show the latest events, or those around the selected time. */
  #drawEvents() {
    const selected = this.#selected, nearby = this.#nearby;
    setText(byId("title-nearby"), selected === null ? "Latest events" : `Events around ${clock(selected)}`);
    const note = selected === null ? "" : eventsNote(nearby, selected);
    byId("nearby-note").hidden = note === "";
    setText(byId("nearby-note"), note);
    const link = byId("nearby-all");
    link.hidden = selected === null || nearby.state !== "known" || !nearby.answer.more;
    if (selected !== null) link.href = eventsAddress(selected - NEARBY_SECONDS, selected + NEARBY_SECONDS);
    const events = nearby.state === "known" ? [...nearby.answer.events].reverse() : [];
    const emptyText = this.#since === null ? "No data yet." : "No events yet.";
    show(byId("nearby"), selected === null ? this.#latest : events, now(), selected === null ? emptyText : noEventsText(nearby, selected));
  }

  #drawLegend() {
    updateChildren(byId("legend"), this.#current(), each => String(each.path),
      each => make("li", {}, make("span", {class: `swatch c${colourNumber(each.path)}`, "aria-hidden": "true"}),
        make("strong", {}, pathName(each.path)), make("span", {class: "legend-rate"}), make("span", {class: "legend-cap"})),
      (item, each) => {
        setText(item.children[2], rate(each.rate));
        setText(item.children[3], each.caps.map(cap => `cap ${capText(cap)}`).join(", "));
      });
  }

  /** Show the graph as a table, in which each row stays as long as the graph shows its time. */
  #drawTable() {
    if (!byId("as-table").open) return;
    const {times, step} = this.#series;
    const lines = this.#series.lines(this.#direction);
    const table = byId("graph-table");
    const columns = JSON.stringify(lines.map(each => each.key));
    if (table.dataset.columns !== columns) {
      table.dataset.columns = columns;
      const head = make("tr", {}, make("th", {scope: "col"}, "Time"),
        ...lines.map(each => make("th", {scope: "col", class: "number"}, pathName(each.path))));
      table.replaceChildren(make("thead", {}, head), make("tbody"));
    }
    const interval = step * Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const rows = times.filter(time => time % interval === 0).reverse();
    updateChildren(table.tBodies[0], rows, String,
      time => make("tr", {}, make("th", {scope: "row"}, clock(time)), ...lines.map(() => make("td", {class: "number"}))),
      (row, time) => fill(row, this.#series.stateAt(this.#series.indexOf(time), this.#direction).map(each =>
        `${each.rate === null ? "unknown" : rate(each.rate)}${each.caps.map(cap => `, cap ${capText(cap)}`).join("")}`)));
  }

  /** @param {Overview} overview */
  #drawFigures(overview) {
    this.#drawTiles(overview);
    const zone = overview.time_zone ?? "UTC";
    showBudgets(byId("live-budgets"), overview.budget_totals, overview.budgets, overview.time, zone);
    drawVolumes(overview, zone);
  }

  /** @param {Overview|null} overview null is shown as unknown, not as zero */
  #drawTiles(overview) {
    const number = (/** @type {number|undefined} */ value) => value === undefined ? "–" : value.toLocaleString("en");
    const sum = (/** @type {string} */ direction) => {
      if (overview === null) return null;
      const rates = overview.paths.filter(each => each.direction === direction);
      // The first rates are known about a second after the start.
      return rates.length === 0 && overview.connections > 0 ? null : rates.reduce((all, each) => all + each.rate, 0);
    };
    const starting = (overview?.landing ?? 0) > 0 ? ` (${overview?.landing} starting)` : "";
    facts(byId("tiles"), [
      ["Download", rate(sum("down"))],
      ["Upload", rate(sum("up"))],
      ["Connections", number(overview?.connections)],
      ["Subflows", number(overview?.subflows.active)],
      ["Clients", number(overview?.clients)],
      ["Capped subflows", `${number(overview?.capped)}${starting}`],
    ]);
  }
}

/**
 * Shows the bytes of each path today and this month.
 * @param {Overview} overview @param {string} zone
 */
function drawVolumes({volumes: {day, month}, time}, zone) {
  const today = new Map(day.paths.map(each => [each.path, each]));
  const body = byId("volumes").tBodies[0];
  updateChildren(body, month.paths, each => String(each.path),
    each => make("tr", {}, make("th", {scope: "row"}, pathLabel(each.path)), ...["", " wide", "", " wide"].map(
      suffix => make("td", {class: `number${suffix}`}))),
    (row, each) => {
      const todays = today.get(each.path);
      fill(row, [size(todays?.down ?? 0), size(todays?.up ?? 0), size(each.down), size(each.up)]);
    });
  body.querySelector(":scope > .empty")?.remove();
  if (month.paths.length === 0) body.append(make("tr", {class: "empty"}, make("td", {colspan: "5"}, "No path has carried data yet.")));
  setText(byId("volumes-note"), sinceText(day, month, time, zone));
}

/**
 * Returns since when bytes are counted, unless they are counted from the beginning of day and month.
 * @param {import("./types.mjs").Volume} day @param {import("./types.mjs").Volume} month @param {number} now @param {string} zone
 */
export function sinceText(day, month, now, zone) {
  if (day.since === month.since && day.since > day.begin + 1) {
    return `Counted from ${timeInZone(day.since, now, zone)}; earlier bytes are unknown.`;
  }
  const text = (/** @type {string} */ name, /** @type {import("./types.mjs").Volume} */ {begin, since}) =>
    since > begin + 1 ? `${name}: counted from ${timeInZone(since, now, zone)}; earlier bytes are unknown.` : "";
  const parts = [text("Today", day), text("This month", month)].filter(each => each !== "");
  return parts.length === 0 ? `Day and month in the time zone ${zone}.` : parts.join(" ");
}

/** @param {import("./series.mjs").PathAtTime} each */
function timeRow(each) {
  const name = make("th", {scope: "row"}, pathLabel(each.path));
  return make("tr", {}, name, make("td", {class: "number"}), make("td"));
}

/** @param {string|null} path @returns {HTMLElement} its name, with its colour */
export function pathLabel(path) {
  return make("span", {class: "path"}, make("span", {class: `swatch c${colourNumber(path)}`, "aria-hidden": "true"}),
    pathName(path));
}
