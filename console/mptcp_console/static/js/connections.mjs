// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The table of connections: one page, sorted and filtered by the throttler. It is updated every two seconds, and after
 * a change of caps.
 */
import {Poller, get} from "./api.mjs";
import {clientIn} from "./client_filter.mjs";
import {byId, fill, updateChildren, make, setText} from "./dom.mjs";
import {age, counted, milliseconds, percent, rate, size} from "./format.mjs";
import {withNames} from "./names.mjs";
import {pathLabel} from "./overview.mjs";
import {pathName} from "./series.mjs";
import {reasonsText, totalBytes, verdict} from "./sentences.mjs";

/** @typedef {import("./types.mjs").Connection} Connection */
/** @typedef {import("./types.mjs").Subflow} Subflow */

const UPDATE_SECONDS = 2;
const TYPING_PAUSE_MS = 300;
const FILTER_IDS = ["filter-client", "filter-path", "filter-rule"];

export class ConnectionsPage {
  #form = byId("filter");
  #offset = 0;
  #dryRun = false;
  #visible = false;
  #drawn = false;
  #timer = 0;
  #poller = new Poller(() => this.#load(), UPDATE_SECONDS, () => this.#visible && !byId("pause").checked);

  constructor() {
    this.#form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
    this.#form.addEventListener("input", (/** @type {Event} */ event) => {
      if (event.target !== byId("pause")) this.#offset = 0;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#poller.runNow(), TYPING_PAUSE_MS);
    });
    byId("connections-clear").addEventListener("click", () => {
      for (const id of FILTER_IDS) byId(id).value = "";
      this.#offset = 0;
      this.#poller.runNow();
    });
    byId("previous").addEventListener("click", () => this.#movePages(-1));
    byId("following").addEventListener("click", () => this.#movePages(1));
  }

  /** @param {boolean} value whether this is a dry run */
  set dryRun(value) {
    if (value === this.#dryRun) return;
    this.#dryRun = value;
    if (this.#visible && !byId("pause").checked) this.#poller.runNow();
  }

  /** @param {boolean} visible @param {string} client to filter by; empty: as in the form */
  show(visible, client) {
    this.#visible = visible;
    if (client !== "") {
      for (const id of FILTER_IDS) byId(id).value = "";
      byId("filter-client").value = client;
      this.#offset = 0;
    }
    if (visible) this.#poller.runNow();
  }

  /** Update the table, because caps changed. */
  refresh() {
    this.#poller.runSoon();
  }

  #limit() {
    return Number(byId("filter-limit").value);
  }

  /** @param {number} pages */
  #movePages(pages) {
    this.#offset = Math.max(0, this.#offset + pages * this.#limit());
    this.#poller.runNow();
  }

  async #load() {
    const data = new FormData(this.#form);
    const word = (/** @type {string} */ name) => String(data.get(name) ?? "").trim();
    const message = byId("connections-message");
    const client = clientIn(byId("filter-client"), byId("filter-client-hint"));
    try {
      const answer = await get("connections", {
        client, path: word("path"), rule: word("rule"), sort: word("sort"),
        limit: this.#limit(), offset: this.#offset,
      });
      setText(message, "");
      this.#drawn = true;
      if (this.#offset > 0 && this.#offset >= answer.total) {
        this.#offset = Math.max(0, Math.floor((answer.total - 1) / this.#limit()) * this.#limit());
        this.#poller.runNow();
        return;
      }
      this.#draw(answer.connections, answer.total, answer.time);
      this.#drawEmpty(answer.total === 0, client !== "" || word("path") !== "" || word("rule") !== "");
    } catch (error) {
      setText(message, `${this.#drawn ? "Not up to date" : "Not available"}: ${/** @type {Error} */ (error).message}.`);
    }
  }

  /** @param {boolean} isEmpty @param {boolean} isFiltered */
  #drawEmpty(isEmpty, isFiltered) {
    byId("connections-none").hidden = !isEmpty;
    setText(byId("connections-none-text"), isFiltered ? "No connection matches the filter." : "There is no Multipath TCP connection now.");
    byId("connections-clear").hidden = !isFiltered;
  }

  /** @param {Connection[]} connections @param {number} total @param {number} now */
  #draw(connections, total, now) {
    const table = byId("connections");
    updateChildren(table, connections, each => each.token, each => emptyGroup(each), (body, each) => update(body, each, now, this.#dryRun));
    setText(byId("connections-count"), counted(total, "connection"));
    const last = this.#offset + connections.length;
    setText(byId("page-text"), total === 0 ? "none" : `${this.#offset + 1}–${last} of ${total.toLocaleString("en")}`);
    byId("previous").disabled = this.#offset === 0;
    byId("following").disabled = last >= total;
  }
}

/** @param {Connection} each */
function emptyGroup(each) {
  const link = make("a", {href: `#connection/${each.token}`}, each.token);
  const client = make("span", {class: "client"});
  const name = make("th", {scope: "rowgroup"}, make("span", {class: "visually-hidden"}, "Connection "), link, " ", client);
  return make("tbody", {}, make("tr", {class: "connection"}, name, ...cells()));
}

function cells() {
  const kinds = ["wide", "number wide", "number", "number wide", "number wide", "number wide", "number wide"];
  return [...kinds.map(kind => make("td", {class: kind})), make("td", {}, make("span"), reasonDetails())];
}

/** Returns an element that shows the reason for a cap when it is opened, because tooltips need a mouse. */
function reasonDetails() {
  return make("details", {class: "why"}, make("summary", {}, make("span", {class: "badge"})), make("p"));
}

/**
 * Shows in the last cell of *row* whether its subflow or connection is capped.
 * @param {HTMLTableRowElement} row @param {string} plain text without a reason @param {{text: string, kind: string, reason: string}|null} verdict
 */
function setVerdict(row, plain, verdict) {
  const [text, details] = /** @type {HTMLElement[]} */ ([...row.cells[8].children]);
  setText(text, plain);
  details.hidden = verdict === null;
  if (verdict === null) return;
  const badge = /** @type {HTMLElement} */ (/** @type {Element} */ (details.firstElementChild).firstElementChild);
  setText(badge, verdict.text);
  badge.className = `badge ${verdict.kind}`;
  setText(/** @type {Element} */ (details.lastElementChild), verdict.reason);
}

/** @param {HTMLTableSectionElement} body @param {Connection} each @param {number} now @param {boolean} dryRun */
function update(body, each, now, dryRun) {
  const head = body.rows[0];
  const sum = (/** @type {"rate_sent"|"rate_received"} */ key) => {
    const rates = each.subflows.map(subflow => subflow[key]).filter(value => value !== null);
    return rates.length === 0 ? null : rates.reduce((all, value) => Number(all) + Number(value), 0);
  };
  const capped = each.subflows.filter(subflow => verdict(subflow, dryRun).kind !== "none").length;
  setText(/** @type {Element} */ (head.querySelector(".client")),
    each.tunnel === undefined ? withNames(each.client) : `${withNames(each.client)}, tunnel ${each.tunnel}`);
  fill(head, ["", age(now - each.since), rate(sum("rate_sent")), rate(sum("rate_received")), "", "", size(totalBytes(each))]);
  if (each.relaxed === null) setVerdict(head, capped === 0 ? "none" : `${capped} of ${each.subflows.length} capped`, null);
  else setVerdict(head, "", {text: "relaxed", kind: "relaxed", reason: each.relaxed});
  updateChildren(body, each.subflows, subflow => subflow.remote, subflow => {
    const row = make("tr", {class: "subflow"}, make("th", {scope: "row"}), ...cells());
    row.cells[8].append(make("span", {class: "rule wide-inline"}));
    return row;
  }, (row, subflow) => {
    // A reload may rename paths.
    if (row.cells[0].textContent !== pathName(subflow.path)) row.cells[0].replaceChildren(pathLabel(subflow.path));
    const {text, kind} = verdict(subflow, dryRun);
    const uncapped = subflow.ceil === null && (subflow.upload?.ceil ?? null) === null;
    const rule = uncapped ? "" : subflow.rule ?? subflow.upload?.rule ?? "";
    fill(row, [withNames(subflow.remote), age(now - subflow.since), rate(subflow.rate_sent), rate(subflow.rate_received),
      milliseconds(subflow.rtt), subflow.segments_out ? percent(subflow.retransmits ?? 0, subflow.segments_out) : "–",
      size(totalBytes(subflow))]);
    setVerdict(row, "", {text, kind, reason: reasonsText(subflow)});
    setText(/** @type {Element} */ (row.cells[8].lastElementChild), rule);
  });
}
