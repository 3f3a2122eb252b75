// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The page Health: Squid, the throttler and the kernel's counters.
 */
import {Poller, get} from "./api.mjs";
import {byId, facts, setText} from "./dom.mjs";
import {age, clock} from "./format.mjs";
import {healthFacts} from "./health.mjs";

const UPDATE_SECONDS = 5;

export class HealthPage {
  #visible = false;
  #state = "";
  /** Why Squid does not answer; empty if it does, null before the first request. */
  #squidProblem = /** @type {string|null} */ (null);
  #poller = new Poller(() => this.#load(), UPDATE_SECONDS, () => this.#visible);

  /** @param {boolean} visible */
  show(visible) {
    this.#visible = visible;
    if (visible) this.#poller.runNow();
  }

  /** @param {string} state as in each page's header */
  setThrottlerState(state) {
    this.#state = state;
    this.#draw();
  }

  #draw() {
    const proxy = this.#squidProblem === null ? "Loading …" : this.#squidProblem === "" ? "Squid answers." : this.#squidProblem;
    facts(byId("health-summary"), [["Proxy", proxy], ["Throttler", this.#state]]);
  }

  async #load() {
    await Promise.all([this.#loadProxy(), this.#loadThrottler()]);
  }

  async #loadProxy() {
    const message = byId("proxy-message");
    try {
      const answer = await get("proxy");
      setText(message, "");
      this.#squidProblem = answer.squid.problem === null ? ""
        : `Squid does not answer at ${answer.squid.address}: ${answer.squid.problem}. If it listens elsewhere, set squid in console.yaml.`;
      this.#draw();
      facts(byId("proxy-health"), proxyFacts(answer));
    } catch (error) {
      setText(message, `Not up to date: ${/** @type {Error} */ (error).message}.`);
    }
  }

  async #loadThrottler() {
    const message = byId("health-message");
    try {
      const answer = await get("policy");
      setText(message, answer.is_current === false ? `Last known, at ${clock(answer.time)}.` : "");
      facts(byId("health"), healthFacts(answer));
    } catch (error) {
      setText(message, `Not available: ${/** @type {Error} */ (error).message}.`);
    }
  }
}

/** @param {any} answer @returns {[string, string][]} */
export function proxyFacts({time, squid, mptcp}) {
  const number = (/** @type {number|undefined} */ value) => value === undefined ? "–" : value.toLocaleString("en");
  return [
    ["Squid", squid.problem === null ? "running" : "not answering"],
    ["Version", squid.version || "–"],
    ["Running for", squid.started === undefined ? "–" : age(time - squid.started)],
    ["Client addresses, plain TCP included", number(squid.clients)],
    ["Requests", number(squid.requests)],
    ["Requests refused or failed", number(squid.errors)],
    ["Tunnels opened (CONNECT)", number(squid.tunnels)],
    ["Failed requests to servers", number(squid.server_errors)],
    ["Open file descriptors", squid.descriptors === undefined ? "–" : `${number(squid.descriptors)} of ${number(squid.descriptors_limit)}`],
    ["Connections that asked for Multipath TCP", number(mptcp?.asked)],
    ["Of these, fell back to plain TCP", number(mptcp?.fallbacks)],
    ["Subflows joined", number(mptcp?.joins)],
  ];
}
