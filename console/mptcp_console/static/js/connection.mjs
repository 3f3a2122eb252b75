// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The page of one connection: why each subflow is capped or not, and its events.
 */
import {Poller, get} from "./api.mjs";
import {byId, facts, updateChildren, make, setText} from "./dom.mjs";
import {age, clock, milliseconds, moment, rate, size} from "./format.mjs";
import {show} from "./event_lists.mjs";
import {withNames} from "./names.mjs";
import {pathLabel} from "./overview.mjs";
import {pathName} from "./series.mjs";
import {triedText} from "./sentences.mjs";

/** @typedef {import("./types.mjs").ExplainedSubflow} ExplainedSubflow */
/** @typedef {import("./types.mjs").Subflow} Subflow */

const UPDATE_SECONDS = 3;
const MAX_EVENTS = 200;

export class ConnectionPage {
  #token = "";
  /** @type {number|null} time of the shown state */
  #shownTime = null;
  #poller = new Poller(() => this.#load(), UPDATE_SECONDS, () => this.#token !== "");

  /** @param {string} token the connection's; empty while the page is hidden */
  show(token) {
    if (token !== "" && token !== this.#token) {
      this.#shownTime = null;
      byId("explained").replaceChildren();
      byId("connection-facts").replaceChildren();
      byId("connection-events").replaceChildren();
      setText(byId("connection-message"), "");
      setText(byId("title-connection"), `Connection ${token}`);
    }
    this.#token = token;
    if (token !== "") this.#poller.runNow();
  }

  /** Update the page, because caps changed. */
  refresh() {
    this.#poller.runSoon();
  }

  async #load() {
    const token = this.#token;
    if (token === "") return;
    const message = byId("connection-message");
    try {
      const events = await get("events", {token, limit: MAX_EVENTS});
      const [explanation, live] = await Promise.all([get("explain", {token}), get("connections", {token})]);
      if (token !== this.#token) return;
      const now = explanation.time;
      show(byId("connection-events"), events.events.reverse(), now, "No events.", token);
      const explained = explanation.connections[0];
      const connection = live.connections[0];
      if (explained === undefined) {
        setText(message, closedText(this.#shownTime, events.events.length > 0));
        return;
      }
      this.#shownTime = now;
      setText(message, "");
      facts(byId("connection-facts"), [
        ["Client", explained.tunnel === undefined ? withNames(explained.client) : `${withNames(explained.client)}, tunnel ${explained.tunnel} (UDP)`],
        ["Since", `${moment(explained.since, now)} (${age(now - explained.since)})`],
        ["Sent", size(connection?.bytes_sent)],
        ["Received", size(connection?.bytes_received)],
        ["Caps relaxed by the guard", connection?.relaxed ?? (explained.subflows.some(isCapped) ? "no" : "no cap")],
      ]);
      const subflows = new Map((connection?.subflows ?? []).map((/** @type {Subflow} */ each) => [each.remote, each]));
      updateChildren(byId("explained"), explained.subflows, (/** @type {ExplainedSubflow} */ each) => `${each.direction} ${each.remote}`,
        emptyCard,
        (card, /** @type {ExplainedSubflow} */ each) => update(card, each, subflows.get(each.remote), now, explanation.time_zone));
    } catch (error) {
      setText(message, `Not up to date: ${/** @type {Error} */ (error).message}.`);
    }
  }
}

/**
 * Returns why no new state of a connection is shown.
 * @param {number|null} shownTime time of the shown state; null if none is shown @param {boolean} hasEvents
 */
export function closedText(shownTime, hasEvents) {
  if (shownTime !== null) return `This connection is closed. Its last known state, from ${clock(shownTime)}, is shown.`;
  return hasEvents ? "This connection is closed. Its events are below."
    : "There is no such connection now, and no events of it are stored.";
}

/** @param {ExplainedSubflow} each */
function isCapped(each) {
  return each.cap_state !== "none";
}

/** Returns an empty card. Updates change only the elements that differ, so that focus and selection are kept. */
function emptyCard() {
  return make("article", {class: "card"},
    make("div", {class: "card-head"}, make("h2", {}, make("span"), make("span"), make("span", {class: "badge"}))),
    make("p", {class: "reason"}), make("dl", {class: "facts"}),
    make("h3", {}, "Rules, in the order in which they were checked"), make("ol", {class: "tried"}), make("p", {class: "help"}, "No rule applies to this direction."),
    make("h3", {}, "What was applied after the rules"), make("ul", {class: "stages"}));
}

/**
 * @param {HTMLElement} card @param {ExplainedSubflow} each @param {Subflow|undefined} live @param {number} now
 * @param {string} zone of the policy
 */
function update(card, each, live, now, zone) {
  const [head, reason, list, , tried, noRule, stagesTitle, stages] = /** @type {HTMLElement[]} */ ([...card.children]);
  const [path, direction, badge] = /** @type {HTMLElement[]} */ ([.../** @type {Element} */ (head.firstElementChild).children]);
  const state = each.cap_state === "none" || each.cap_state === "in force" ? "" : ` (${each.cap_state})`;
  if (path.textContent !== pathName(each.path)) path.replaceChildren(pathLabel(each.path));
  setText(direction, ` ${each.direction === "up" ? "upload" : "download"} `);
  setText(badge, `${each.verdict}${state}`);
  badge.className = `badge ${each.cap_state === "none" ? "none" : each.cap_state === "in force" ? "capped" : "landing"}`;
  setText(reason, each.reason);
  facts(list, [
    ["Client's end", withNames(each.remote)],
    ["Proxy's end", `${each.local}${each.interface === null ? "" : ` on ${each.interface}`}`],
    ["Subflow since", live === undefined ? "–" : `${moment(live.since, now)} (${age(now - live.since)})`],
    ["Cap unchanged since", `${moment(each.since, now)} (${age(now - each.since)})`],
    ["Rate", live === undefined ? "–" : rate(each.direction === "up" ? live.rate_received : live.rate_sent)],
    ["Bytes", size(each.direction === "up" ? live?.bytes_received : live?.bytes_sent)],
    ["RTT", milliseconds(live?.rtt)],
    ["Retransmitted segments", live?.retransmits === null || live === undefined ? "–" : String(live.retransmits)],
  ]);
  updateChildren(tried, each.tried.map((rule, index) => ({rule, index})), ({index}) => String(index),
    () => make("li", {}, make("strong"), make("span")), (item, {rule}) => {
      item.className = rule.matched ? "matched" : "failed";
      setText(item.children[0], rule.rule);
      setText(item.children[1], `${rule.kind === "throttle" ? "" : ` (${rule.kind})`} ${triedText(rule, now, zone)}`);
    });
  noRule.hidden = each.tried.length > 0;
  updateChildren(stages, each.stages.map((stage, index) => ({stage, index})), ({index}) => String(index),
    () => make("li", {}, make("strong"), make("span")), (item, {stage}) => {
      setText(item.children[0], stage.stage);
      setText(item.children[1], ` ${stage.what}${stage.since === null ? "" : `, since ${moment(stage.since, now)}`}`);
    });
  stagesTitle.hidden = each.stages.length === 0;
}
