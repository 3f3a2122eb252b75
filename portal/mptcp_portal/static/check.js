// Asks again, for as long as the page is open and seen: paths join after the first answer, caps come and go.
"use strict";
const SECONDS = 3;
/**
 * What is shown of check.json (docs/portal.md); sizes in bytes.
 * @typedef {{path: string|null, address: string|null, limit: string, carried: string}} Subflow
 * @typedef {{title: string, left: number, volume: number}} Budget
 * @typedef {{transport: string, headline: string, lines: string[], subflows: Subflow[], budgets: Budget[]}} CheckReport
 */

/** @param {string} id of an element that the page has @returns {HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error("the page has no " + id);
  return found;
}

/** @param {CheckReport} report */
function show(report) {
  // Only what changed is written: a screen reader reads out each change.
  if (byId("headline").textContent !== report.headline) byId("headline").textContent = report.headline;
  byId("answer").dataset.transport = report.transport;
  fill(byId("lines"), report.lines.map((line) => [["li", line]]));
  fill(byId("subflows"), report.subflows.map((each) => [
    ["th", each.path || "no name"], ["td", each.address || ""], ["td", each.limit], ["td", each.carried]]));
  byId("paths").hidden = report.subflows.length === 0;
  byId("systems").hidden = report.transport === "multipath";
  const volumes = byId("budgets");
  const before = [...volumes.querySelectorAll("meter")].map((meter) => meter.value + "/" + meter.max).join();
  if (before !== report.budgets.map((each) => each.left + "/" + each.volume).join()) {
    volumes.replaceChildren(...report.budgets.map((each) => {
      const item = document.createElement("li"), label = document.createElement("label");
      const meter = document.createElement("meter");
      meter.max = each.volume;
      meter.value = each.left;
      label.append(each.title + " ", meter);
      item.append(label);
      return item;
    }));
  }
  byId("volumes").hidden = report.budgets.length === 0;
}

/**
 * Put the *rows* there, each of its cells, or one cell alone.
 * @param {HTMLElement} parent @param {["li"|"th"|"td", string][][]} rows
 */
function fill(parent, rows) {
  const wanted = JSON.stringify(rows);
  if (parent.dataset.shown === wanted) return;
  parent.dataset.shown = wanted;
  parent.replaceChildren(...rows.map((cells) => {
    const made = cells.map(([name, text]) => {
      const cell = document.createElement(name);
      if (name === "th") cell.setAttribute("scope", "row");
      cell.textContent = text;
      return cell;
    });
    if (made.length === 1) return made[0];
    const row = document.createElement("tr");
    row.append(...made);
    return row;
  }));
}

const explained = byId("state").textContent;

async function look() {
  if (document.visibilityState !== "hidden") {
    try {
      const answer = await fetch("check.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      show(await answer.json());
      byId("state").textContent = explained;
    } catch {
      byId("state").textContent = "The proxy does not answer now: what stands here is from before. Asking again …";
    }
  }
  setTimeout(look, SECONDS * 1000);
}

setTimeout(look, 1000);
