/**
 * One connection: why each of its subflows is capped or not, and what happened to it.
 */
import {Repeated, get} from "./api.mjs";
import {byId, facts, keyed, make, setText} from "./dom.mjs";
import {age, milliseconds, moment, rate, size} from "./format.mjs";
import {show} from "./happenings.mjs";
import {pathLabel} from "./overview.mjs";
import {triedText} from "./words.mjs";

/** @typedef {import("./types.mjs").ExplainedSubflow} ExplainedSubflow */
/** @typedef {import("./types.mjs").Subflow} Subflow */

const SECONDS = 3;
const EVENTS = 200;

export class ConnectionPage {
  #token = "";
  #asked = new Repeated(() => this.#load(), SECONDS, () => this.#token !== "");

  /** @param {string} token that of a connection; nothing while the page is not shown */
  show(token) {
    if (token !== "" && token !== this.#token) {
      byId("explained").replaceChildren();
      byId("connection-facts").replaceChildren();
      byId("connection-events").replaceChildren();
      setText(byId("connection-message"), "");
      setText(byId("title-connection"), `Connection ${token}`);
    }
    this.#token = token;
    if (token !== "") this.#asked.now();
  }

  /** Caps came or went. */
  changed() {
    this.#asked.soon();
  }

  async #load() {
    const token = this.#token;
    if (token === "") return;
    const message = byId("connection-message");
    try {
      const events = await get("events", {token, limit: EVENTS});
      const [explained, found] = await Promise.all([get("explain", {token}), get("connections", {token})]);
      if (token !== this.#token) return;
      const now = explained.time;
      show(byId("connection-events"), events.events.reverse(), now, "Nothing of it is kept.", token);
      const why = explained.connections[0];
      const live = found.connections[0];
      if (why === undefined) {
        setText(message, "It is closed, or there never was one.");
        return;
      }
      setText(message, "");
      facts(byId("connection-facts"), [
        ["Client", why.client],
        ["Since", `${moment(why.since, now)} (${age(now - why.since)})`],
        ["Sent", size(live?.bytes_sent)],
        ["Received", size(live?.bytes_received)],
        ["Guard", live?.relaxed ?? "caps hold"],
      ]);
      const subflows = new Map((live?.subflows ?? []).map((/** @type {Subflow} */ each) => [each.remote, each]));
      keyed(byId("explained"), why.subflows, (/** @type {ExplainedSubflow} */ each) => `${each.direction} ${each.remote}`,
        () => make("article", {class: "card"}),
        (card, /** @type {ExplainedSubflow} */ each) => update(card, each, subflows.get(each.remote), now, explained.time_zone));
    } catch (error) {
      setText(message, `Not up to date: ${/** @type {Error} */ (error).message}.`);
    }
  }
}

/**
 * @param {HTMLElement} card @param {ExplainedSubflow} each @param {Subflow|undefined} live @param {number} now
 * @param {string} zone of the policy
 */
function update(card, each, live, now, zone) {
  const kind = each.cap_state === "none" ? "none" : each.cap_state === "in force" ? "capped" : "landing";
  const state = each.cap_state === "none" || each.cap_state === "in force" ? "" : ` (${each.cap_state})`;
  const title = make("h2", {}, pathLabel(each.path), ` ${each.direction === "up" ? "upload" : "download"} `,
    make("span", {class: `badge ${kind}`}, `${each.verdict}${state}`));
  const list = make("dl", {class: "facts"});
  facts(list, [
    ["Client's end", each.remote],
    ["Ours", `${each.local}${each.interface === null ? "" : ` on ${each.interface}`}`],
    ["Since", `${moment(each.since, now)} (${age(now - each.since)})`],
    ["Rate", live === undefined ? "–" : rate(each.direction === "up" ? live.rate_received : live.rate_sent)],
    ["RTT", milliseconds(live?.rtt)],
    ["Repeated segments", live?.retransmits === null || live === undefined ? "–" : String(live.retransmits)],
  ]);
  const tried = make("ol", {class: "tried"}, ...each.tried.map(rule => {
    const kind = rule.kind === "throttle" ? "" : ` (${rule.kind})`;
    return make("li", {class: rule.matched ? "matched" : "failed"}, make("strong", {}, rule.rule), `${kind} ${triedText(rule, now, zone)}`);
  }));
  const stages = make("ul", {class: "stages"}, ...each.stages.map(stage =>
    make("li", {}, make("strong", {}, stage.stage), ` ${stage.what}${stage.since === null ? "" : `, since ${moment(stage.since, now)}`}`)));
  const parts = [make("div", {class: "card-head"}, title), make("p", {class: "reason"}, each.reason), list, make("h3", {}, "Rules that were tried"),
    each.tried.length > 0 ? tried : make("p", {class: "help"}, "No rule is for this direction.")];
  if (each.stages.length > 0) parts.push(make("h3", {}, "What changed it after that"), stages);
  const fresh = make("div", {}, ...parts);
  if (card.firstElementChild === null || !card.firstElementChild.isEqualNode(fresh)) card.replaceChildren(fresh);
}
