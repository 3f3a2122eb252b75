// Asks again, for as long as the page is open and seen: paths join after the first answer, caps come and go.
"use strict";
const SECONDS = 3;
/**
 * What is shown of check.json (docs/portal.md); sizes in bytes.
 * @typedef {{path: string|null, address: string|null, limit: string, carried: string}} Subflow
 * @typedef {{title: string, left: number, volume: number, low: number, getting_low: number}} Budget
 * @typedef {{transport: string, throttler: string, headline: string, lines: string[], subflows: Subflow[], budgets: Budget[]}} CheckReport
 */

/** @param {string} id of an element that the page has @returns {HTMLElement} */
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
  fill(byId("lines"), report.lines.map((line) => [["li", line]]));
  fill(byId("subflows"), report.subflows.map((each) => [
    ["th", each.path || "no name"], ["td", each.address || ""], ["td", each.limit], ["td", each.carried]]));
  byId("paths").hidden = report.subflows.length === 0;
  byId("systems").hidden = report.transport === "multipath";
  volumes(byId("budgets"), report.budgets);
  byId("volumes").hidden = report.budgets.length === 0;
}

/**
 * Whether the kernel alone was asked, as the throttler is asked by too many or does not answer, and says nothing new: what is there holds more.
 * @param {CheckReport} report
 */
function tellsLess(report) {
  const {transport, throttler} = byId("answer").dataset;
  return ["busy", "silent"].includes(report.throttler) && throttler === "answered" && transport === report.transport;
}

/**
 * Where it is another text, write it: a screen reader reads out each change of what is live.
 * @param {Element} element @param {string} text
 */
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Have the *rows* there, each of its cells, or one cell alone. What is there stays, and gets what changed.
 * @param {HTMLElement} parent @param {["li"|"th"|"td", string][][]} rows
 */
function fill(parent, rows) {
  while (parent.children.length > rows.length) parent.lastElementChild?.remove();
  rows.forEach((cells, number) => {
    let row = parent.children[number];
    if (row === undefined) {
      const made = cells.map(([name]) => {
        const cell = document.createElement(name);
        if (name === "th") cell.setAttribute("scope", "row");
        return cell;
      });
      if (made.length === 1) row = made[0];
      else {
        row = document.createElement("tr");
        row.append(...made);
      }
      parent.append(row);
    }
    if (cells.length === 1) write(row, cells[0][1]);
    else cells.forEach(([, text], place) => write(row.children[place], text));
  });
}

/** @param {HTMLElement} list @param {Budget[]} budgets */
function volumes(list, budgets) {
  while (list.children.length > budgets.length) list.lastElementChild?.remove();
  budgets.forEach((each, number) => {
    if (list.children[number] === undefined) {
      const item = document.createElement("li"), label = document.createElement("label");
      label.append(document.createElement("span"), " ", document.createElement("meter"));
      item.append(label);
      list.append(item);
    }
    const label = list.children[number].children[0];
    const meter = /** @type {HTMLMeterElement} */ (label.querySelector("meter"));
    write(/** @type {Element} */ (label.querySelector("span")), each.title);
    meter.max = each.volume;
    meter.optimum = each.volume;
    meter.low = each.low;
    meter.high = each.getting_low;
    meter.value = each.left;
  });
}

const explained = byId("state").textContent || "";
const CROWDED = "Too many ask at the moment: what stands here is from before. Asking again …";

async function look() {
  if (document.visibilityState !== "hidden") {
    try {
      const answer = await fetch("check.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const report = await answer.json();
      const less = tellsLess(report);
      if (!less) show(report);
      write(byId("state"), less ? CROWDED : explained);
    } catch {
      write(byId("state"), "The proxy does not answer now: what stands here is from before. Asking again …");
    }
  }
  setTimeout(look, SECONDS * 1000);
}

setTimeout(look, 1000);
