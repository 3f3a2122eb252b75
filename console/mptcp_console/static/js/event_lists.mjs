// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Lists of events: on the live page, on a connection's page, and on the page of all events.
 */
import {get} from "./api.mjs";
import {clientIn} from "./client_filter.mjs";
import {byId, updateChildren, make, setText} from "./dom.mjs";
import {clock, lastTime, moment} from "./format.mjs";
import {withNames} from "./names.mjs";
import {now} from "./server_time.mjs";

/** @typedef {import("./types.mjs").LoggedEvent} LoggedEvent */

const MAX_SHOWN = 300;

/**
 * @param {Element} list @param {LoggedEvent[]} events the newest first @param {number} now seconds since the epoch
 * @param {string} emptyText text if there are no events @param {string} [ownToken] token of a connection that needs no link
 */
export function show(list, events, now, emptyText, ownToken) {
  updateChildren(list, events, each => String(each.serial), each => row(each, ownToken), (element, each) => {
    setText(/** @type {Element} */ (element.firstElementChild), moment(each.time, now));
  });
  list.querySelector(":scope > .empty")?.remove();
  if (events.length === 0) list.append(make("li", {class: "empty"}, emptyText));
}

/**
 * Returns the newest events: those that the stream brought since the request, then those of *answer*.
 *
 * @param {LoggedEvent[]} answer the oldest first @param {LoggedEvent[]} shown now, the newest first
 * @param {LoggedEvent[]} before shown at the request @param {number} limit
 */
export function mergeNewest(answer, shown, before, limit) {
  // Objects are compared instead of numbers, because a restarted console begins its numbers again.
  const shownBefore = new Set(before), inAnswer = new Set(answer.map(each => each.serial));
  return shown.filter(each => !shownBefore.has(each) && !inAnswer.has(each.serial)).concat(answer.reverse()).slice(0, limit);
}

/** @param {LoggedEvent} each @param {string} [ownToken] */
function row(each, ownToken) {
  const time = make("time", {datetime: new Date(each.time * 1000).toISOString()}, clock(each.time));
  const kind = make("span", {class: "kind", "data-kind": each.kind ?? ""}, each.kind ?? "");
  const text = make("span", {class: "what"}, withNames(each.text));
  const item = make("li", {}, time, kind, text);
  if (each.token !== undefined && each.token !== ownToken) {
    item.append(make("a", {href: `#connection/${each.token}`, "aria-label": `Connection ${each.token}`}, each.token));
  }
  return item;
}

/** The page of all events. */
export class EventsPage {
  /** @type {LoggedEvent[]} the newest first */
  #events = [];
  /** The text if there are no events. */
  #emptyText = "Loading …";
  #form = byId("events-filter");
  #timer = 0;

  constructor() {
    this.#form.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.load(), 250);
    });
    byId("events-clear").addEventListener("click", () => {
      this.#form.reset();
      this.load();
    });
    this.#form.addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  }

  /** @param {string} span FROM-TO in seconds, from the address; empty: as in the form */
  show(span) {
    if (span !== "") {
      this.#form.reset();
      const [from, to] = span.split("-").map(Number);
      byId("events-from").value = clock(from);
      byId("events-to").value = clock(Math.min(to, now()));
    }
    this.load();
  }

  #filter() {
    const data = new FormData(this.#form);
    const from = lastTime(byId("events-from").value, now());
    const to = lastTime(byId("events-to").value, now());
    const word = (/** @type {string} */ name) => String(data.get(name) ?? "").trim();
    const client = clientIn(byId("events-client"), byId("events-client-hint"));
    return {kind: word("kind"), client, rule: word("rule"), from: from ?? "", to: to ?? ""};
  }

  async load() {
    const message = byId("events-message");
    const before = this.#events;
    try {
      const answer = await get("events", {...this.#filter(), limit: MAX_SHOWN});
      this.#events = mergeNewest(answer.events, this.#events, before, MAX_SHOWN);
      this.#emptyText = this.#isFiltered() ? "No event matches the filter." : "No events yet.";
      setText(message, "");
      const since = answer.since === null ? "" : `; complete since ${clock(answer.since)}`;
      setText(byId("events-count"), answer.more ? `the newest ${MAX_SHOWN}${since}` : `${this.#events.length} within an hour${since}`);
    } catch (error) {
      this.#emptyText = "The events are unknown.";
      setText(message, `Not available: ${/** @type {Error} */ (error).message}.`);
    }
    this.#draw();
  }

  /** @param {LoggedEvent[]} events new events, the oldest first */
  push(events) {
    const {kind, client, rule, from, to} = this.#filter();
    if (to !== "" || events.length === 0) return;
    const matching = events.filter(each => (kind === "" || each.kind === kind) && (client === "" || each.client === client)
      && (rule === "" || each.rule === rule) && (from === "" || each.time >= Number(from))
      && each.serial > (this.#events[0]?.serial ?? 0));
    if (matching.length === 0) return;
    this.#events = [...matching.reverse(), ...this.#events].slice(0, MAX_SHOWN);
    setText(byId("events-count"), this.#events.length === MAX_SHOWN ? `the newest ${MAX_SHOWN}` : `${this.#events.length} within an hour`);
    this.#draw();
  }

  /** @returns {boolean} whether a filter is set */
  #isFiltered() {
    return Object.values(this.#filter()).some(each => each !== "");
  }

  #draw() {
    show(byId("events"), this.#events, now(), this.#emptyText);
    byId("events-none").hidden = this.#events.length > 0 || !this.#isFiltered();
  }
}
