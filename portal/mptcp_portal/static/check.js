// SPDX-License-Identifier: GPL-2.0-or-later
// Updates the page while it is visible: paths join after the first answer, and caps change.
"use strict";
const UPDATE_SECONDS = 3;
/**
 * The used parts of check.json (docs/portal.md); sizes in bytes.
 * @typedef {{path: string|null, address: string|null, share: number, details: string}} Subflow
 * @typedef {{title: string, left: number, volume: number, low: number, getting_low: number, figure: string}} Budget
 * @typedef {{transport: string, throttler: string, headline: string, lines: string[], advice: string[], subflows: Subflow[], budgets: Budget[]}} CheckReport
 * A bar and its texts.
 * @typedef {{name: string, address: string, value: number, max: number, low?: number, high?: number, figure: string, details: string}} Bar
 */

/** @param {string} id ID of an element of the page @returns {HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error("the page has no " + id);
  return found;
}

/** @param {CheckReport} report */
function show(report) {
  write(byId("headline"), report.headline);
  const answer = byId("answer");
  answer.dataset.transport = report.transport;
  answer.dataset.throttler = report.throttler;
  fill(byId("lines"), report.lines);
  fill(byId("steps"), report.advice);
  byId("advice").hidden = report.advice.length === 0;
  showBars(byId("subflows"), report.subflows.map((each) => ({
    name: each.path || "no name", address: each.address || "", value: each.share, max: 100,
    figure: each.share + " %", details: each.details})));
  byId("paths").hidden = report.subflows.length === 0;
  byId("systems").hidden = report.transport === "multipath";
  showBars(byId("budgets"), report.budgets.map((each) => ({
    name: each.title, address: "", value: each.left, max: each.volume, low: each.low, high: each.getting_low,
    figure: each.figure, details: ""})));
  byId("volumes").hidden = report.budgets.length === 0;
}

/**
 * Return whether the report lacks the throttler's part (the throttler is busy or silent), but the shown report has it.
 * @param {CheckReport} report
 */
function lacksThrottlerPart(report) {
  const {transport, throttler} = byId("answer").dataset;
  return ["busy", "silent"].includes(report.throttler) && throttler === "answered" && transport === report.transport;
}

/**
 * Write the text only if it differs, because a screen reader reads out each change in a live region.
 * @param {Element} element @param {string} text
 */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Show the *lines*: keep existing items, and change only their text.
 * @param {HTMLElement} list @param {string[]} lines
 */
function fill(list, lines) {
  while (list.children.length > lines.length) list.lastElementChild?.remove();
  lines.forEach((line, index) => {
    if (list.children[index] === undefined) list.append(document.createElement("li"));
    write(list.children[index], line);
  });
}

/**
 * Show the *bars* as copies of the page's template: keep existing items, and change only their content.
 * @param {HTMLElement} list @param {Bar[]} bars
 */
function showBars(list, bars) {
  const template = /** @type {HTMLTemplateElement} */ (byId("bar")).content;
  while (list.children.length > bars.length) list.lastElementChild?.remove();
  bars.forEach((each, index) => {
    if (list.children[index] === undefined) list.append(template.cloneNode(true));
    const row = list.children[index];
    for (const name of /** @type {const} */ (["name", "address", "figure", "details"])) {
      write(/** @type {Element} */ (row.querySelector("." + name)), each[name]);
    }
    const meter = /** @type {HTMLMeterElement} */ (row.querySelector("meter"));
    meter.max = each.max;
    if (each.low !== undefined && each.high !== undefined) {
      meter.optimum = each.max;
      meter.low = each.low;
      meter.high = each.high;
    }
    meter.value = each.value;
  });
}

const explanation = byId("state").textContent || "";
const BUSY_TEXT = "Too many requests at the moment: this is the previous state. Trying again …";

async function update() {
  if (document.visibilityState !== "hidden") {
    try {
      const answer = await fetch("check.json", { cache: "no-store" });
      // A 503 in JSON has the kernel's part, without the throttler's. Squid's own 503 is an HTML page.
      if (!(answer.headers.get("content-type") || "").includes("json")) throw new Error(String(answer.status));
      const report = await answer.json();
      const isIncomplete = lacksThrottlerPart(report);
      if (!isIncomplete) show(report);
      write(byId("state"), isIncomplete ? BUSY_TEXT : explanation);
    } catch {
      write(byId("state"), "The proxy does not answer this page now: this is the previous state. Trying again …");
    }
  }
  setTimeout(update, UPDATE_SECONDS * 1000);
}

setTimeout(update, 1000);
