// SPDX-License-Identifier: GPL-2.0-or-later
// Asks again while the page is open and visible: paths join after the first answer, caps come and go.
"use strict";
const SECONDS = 3;
/**
 * The used parts of check.json (docs/portal.md); sizes in bytes.
 * @typedef {{path: string|null, address: string|null, share: number, details: string}} Subflow
 * @typedef {{title: string, left: number, volume: number, low: number, getting_low: number, figure: string}} Budget
 * @typedef {{transport: string, throttler: string, headline: string, lines: string[], advice: string[], subflows: Subflow[], budgets: Budget[]}} CheckReport
 * A bar and its texts.
 * @typedef {{name: string, address: string, value: number, most: number, low?: number, high?: number, figure: string, details: string}} Bar
 */

/** @param {string} id of an element of the page @returns {HTMLElement} */
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
  bars(byId("subflows"), report.subflows.map((each) => ({
    name: each.path || "no name", address: each.address || "", value: each.share, most: 100,
    figure: each.share + " %", details: each.details})));
  byId("paths").hidden = report.subflows.length === 0;
  byId("systems").hidden = report.transport === "multipath";
  bars(byId("budgets"), report.budgets.map((each) => ({
    name: each.title, address: "", value: each.left, most: each.volume, low: each.low, high: each.getting_low,
    figure: each.figure, details: ""})));
  byId("volumes").hidden = report.budgets.length === 0;
}

/**
 * Whether the report lacks the throttler's part (it is busy or silent) and says nothing new: the shown one has more.
 * @param {CheckReport} report
 */
function tellsLess(report) {
  const {transport, throttler} = byId("answer").dataset;
  return ["busy", "silent"].includes(report.throttler) && throttler === "answered" && transport === report.transport;
}

/**
 * Write the text only if it differs: a screen reader reads out each change in a live region.
 * @param {Element} element @param {string} text
 */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Show the *lines*: keep existing items, and update what changed.
 * @param {HTMLElement} list @param {string[]} lines
 */
function fill(list, lines) {
  while (list.children.length > lines.length) list.lastElementChild?.remove();
  lines.forEach((line, number) => {
    if (list.children[number] === undefined) list.append(document.createElement("li"));
    write(list.children[number], line);
  });
}

/**
 * Show the bars likewise, made from the page's template.
 * @param {HTMLElement} list @param {Bar[]} bars
 */
function bars(list, bars) {
  const pattern = /** @type {HTMLTemplateElement} */ (byId("bar")).content;
  while (list.children.length > bars.length) list.lastElementChild?.remove();
  bars.forEach((each, number) => {
    if (list.children[number] === undefined) list.append(pattern.cloneNode(true));
    const row = list.children[number];
    for (const name of /** @type {const} */ (["name", "address", "figure", "details"])) {
      write(/** @type {Element} */ (row.querySelector("." + name)), each[name]);
    }
    const meter = /** @type {HTMLMeterElement} */ (row.querySelector("meter"));
    meter.max = each.most;
    if (each.low !== undefined && each.high !== undefined) {
      meter.optimum = each.most;
      meter.low = each.low;
      meter.high = each.high;
    }
    meter.value = each.value;
  });
}

const explained = byId("state").textContent || "";
const CROWDED = "Too many ask at the moment: what stands here is from before. Asking again …";

async function look() {
  if (document.visibilityState !== "hidden") {
    try {
      const answer = await fetch("check.json", { cache: "no-store" });
      // 503 without the throttler's answer has the kernel's part. Squid's own 503 is a page.
      if (!(answer.headers.get("content-type") || "").includes("json")) throw new Error(String(answer.status));
      const report = await answer.json();
      const less = tellsLess(report);
      if (!less) show(report);
      write(byId("state"), less ? CROWDED : explained);
    } catch {
      write(byId("state"), "The proxy has no answer for this page now: what stands here is from before. Asking again …");
    }
  }
  setTimeout(look, SECONDS * 1000);
}

setTimeout(look, 1000);
