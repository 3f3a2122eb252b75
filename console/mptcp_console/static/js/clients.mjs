// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The page of clients: those with Multipath TCP, sorted by rate, bytes or budget, and those with plain TCP.
 */
import {Poller, get} from "./api.mjs";
import {isUsedUp, usedText} from "./budgets.mjs";
import {byId, fill, updateChildren, make, setText} from "./dom.mjs";
import {counted, rate, size} from "./format.mjs";
import {withNames} from "./names.mjs";

/** @typedef {{name: string, client: string, used: number, volume: number}} Account */
/**
 * @typedef {{client: string, connections: number, subflows: number, capped: number, rate_sent: number, rate_received: number,
 *   bytes_sent: number, bytes_received: number, budgets: Account[]}} Client
 */
/** @typedef {{connections: number, total: number, clients: {client: string, connections: number}[]}} PlainTcp */

const UPDATE_SECONDS = 3;

export class ClientsPage {
  #visible = false;
  #drawn = false;
  #poller = new Poller(() => this.#load(), UPDATE_SECONDS, () => this.#visible);

  constructor() {
    const form = byId("clients-filter");
    form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
    form.addEventListener("input", () => this.#poller.runNow());
  }

  /** @param {boolean} visible */
  show(visible) {
    this.#visible = visible;
    if (visible) this.#poller.runNow();
  }

  /** Update the table, because names of addresses changed. */
  refresh() {
    this.#poller.runSoon();
  }

  async #load() {
    const message = byId("clients-message");
    try {
      const answer = await get("clients", {sort: byId("clients-sort").value, limit: byId("clients-limit").value});
      setText(message, "");
      this.#drawn = true;
      draw(answer.clients, answer.total);
      drawPlain(answer.plain_tcp);
    } catch (error) {
      setText(message, `${this.#drawn ? "Not up to date" : "Not available"}: ${/** @type {Error} */ (error).message}.`);
    }
  }
}

/** @param {Client[]} clients @param {number} total */
function draw(clients, total) {
  const more = total > clients.length ? `, the first ${clients.length} shown` : "";
  setText(byId("clients-count"), `${counted(total, "client")}${more}`);
  const body = byId("clients").tBodies[0];
  updateChildren(body, clients, each => each.client, each => make("tr", {}, make("th", {scope: "row"}, linkTo(each.client), make("span", {class: "narrow"})),
    make("td", {class: "number"}), make("td", {class: "number wide"}), make("td", {class: "number"}),
    make("td", {class: "number wide"}), make("td", {class: "number"}), make("td", {class: "wide"})),
  (row, each) => {
    setText(/** @type {Element} */ (row.cells[0].firstElementChild), withNames(each.client));
    // A phone has no room for a column of budgets.
    setText(/** @type {Element} */ (row.cells[0].lastElementChild), each.budgets.some(isUsedUp) ? " over its budget" : "");
    fill(row, [each.connections.toLocaleString("en"), each.capped > 0 ? `${each.capped} of ${each.subflows}` : "none",
      rate(each.rate_sent), rate(each.rate_received), size(each.bytes_sent + each.bytes_received), budgetCell(each.budgets)]);
    row.className = each.budgets.some(isUsedUp) ? "used-up" : "";
  });
  body.querySelector(":scope > .empty")?.remove();
  if (clients.length === 0) {
    body.append(make("tr", {class: "empty"}, make("td", {colspan: "7"}, "No client has a Multipath TCP connection now.")));
  }
}

/** @param {string} client */
function linkTo(client) {
  return make("a", {href: `#connections/${client}`});
}

/** @param {Account[]} budgets @returns {Node} */
function budgetCell(budgets) {
  if (budgets.length === 0) return make("span", {}, "–");
  const [fullest] = budgets;
  const cell = make("span", {}, `${fullest.name}: ${usedText(fullest)}`);
  if (isUsedUp(fullest)) cell.append(" ", make("span", {class: "badge capped"}, "over"));
  return cell;
}

/** @param {PlainTcp|null|undefined} plain */
function drawPlain(plain) {
  const report = plain ?? null;
  setText(byId("plain-count"), report === null ? "unknown"
    : `${counted(report.total, "client")}, ${counted(report.connections, "connection")}`);
  const list = byId("plain-clients");
  updateChildren(list, report?.clients ?? [], each => each.client, () => make("li"),
    (item, each) => setText(item, `${withNames(each.client)}: ${counted(each.connections, "connection")}`));
  list.querySelector(":scope > .empty")?.remove();
  if (report === null || report.clients.length === 0) {
    list.append(make("li", {class: "empty"}, report === null ? "The throttler does not report clients of plain TCP." : "No client uses plain TCP now."));
  }
}
