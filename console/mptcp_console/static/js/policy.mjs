// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The page of the current policy and its budgets, and the page that shows the effect that another policy would have.
 */
import {Poller, get, post} from "./api.mjs";
import {showBudgets} from "./budgets.mjs";
import {byId, facts, fill, updateChildren, make, setText} from "./dom.mjs";
import {age, clock, counted, moment, size} from "./format.mjs";
import {pathLabel} from "./overview.mjs";
import {guaranteedText, rangeText} from "./sentences.mjs";

/** @typedef {import("./types.mjs").Rule} Rule */
/** @typedef {{rule: string, conditions: string[], does: string[]}} RuleWords */
/** @typedef {{path: string, conditions: string[]}} PathWords */
/**
 * A subflow in the answer to what_if.
 * @typedef {{token: string, remote: string, path: string|null, direction: string, now: string, then: string, why: string|null}} SubflowChange
 */

const UPDATE_SECONDS = 3;
const SHARED = {path: "all subflows together", client: "each client", connection: "each connection"};

export class PolicyPage {
  #visible = false;
  #poller = new Poller(() => this.#load(), UPDATE_SECONDS, () => this.#visible);

  /** @param {boolean} visible */
  show(visible) {
    this.#visible = visible;
    if (visible) this.#poller.runNow();
  }

  /** Update the page, because caps changed. */
  refresh() {
    this.#poller.runSoon();
  }

  async #load() {
    const message = byId("policy-message");
    try {
      const answer = await get("policy");
      setText(message, answer.is_current === false
        ? `The throttler does not answer: this is the last known policy, from ${clock(answer.time)}.` : "");
      byId("policy-body").hidden = false;
      draw(answer);
    } catch (error) {
      const why = /** @type {Error} */ (error).message;
      setText(message, byId("policy-body").hidden ? `The policy is unknown: ${why}.` : `Not up to date: ${why}.`);
    }
  }
}

/** @param {any} answer */
function draw(answer) {
  const now = answer.time;
  const {policy} = answer;
  facts(byId("policy-facts"), [
    ["File", policy?.file ?? "–"],
    ["In force since", policy?.since ? `${moment(policy.since, now)} (${age(now - policy.since)})` : "–"],
    ["Rules", String(policy?.rules?.length ?? 0)],
    ["Reloads", answer.reloads ? `${answer.reloads.accepted} accepted, ${answer.reloads.refused} refused` : "–"],
  ]);
  const paths = byId("path-words");
  updateChildren(paths, policy?.paths_in_words ?? [], (/** @type {PathWords} */ each) => each.path,
    (/** @type {PathWords} */ each) => make("li", {}, make("strong", {}, each.path), make("span")),
    (item, /** @type {PathWords} */ each) => {
      setText(item.children[1], ` ${each.conditions.length > 0 ? each.conditions.join("; ") : "every subflow"}`);
    });
  paths.querySelector(":scope > .empty")?.remove();
  if (paths.children.length === 0) paths.append(make("li", {class: "empty"}, "The policy names no path."));
  /** @type {string[]} */
  const order = policy?.rules ?? [];
  const words = byId("rule-words");
  updateChildren(words, policy?.rules_in_words ?? [], (/** @type {RuleWords} */ each) => each.rule,
    (/** @type {RuleWords} */ each) => make("li", {}, make("strong", {}, each.rule), make("span"), make("p", {class: "help"})),
    (item, /** @type {RuleWords} */ each) => {
      setText(item.children[1], ` ${each.does.join("; ")}`);
      setText(item.children[2], each.conditions.length > 0 ? `When: ${each.conditions.join("; ")}` : "Every subflow");
    });
  words.querySelector(":scope > .empty")?.remove();
  if (order.length === 0) words.append(make("li", {class: "empty"}, "The policy has no rules: nothing is capped."));
  const position = (/** @type {Rule} */ each) => order.indexOf(each.rule) + 1 || order.length + 1;
  const rules = [...answer.rules].sort((/** @type {Rule} */ a, /** @type {Rule} */ b) => position(a) - position(b));
  const body = byId("rules").tBodies[0];
  updateChildren(body, rules, (/** @type {Rule} */ each) => [each.rule, each.path, each.direction, each.share].join("|"),
    (/** @type {Rule} */ each) => make("tr", {}, make("th", {scope: "row"}, each.rule), make("td"),
      make("td", {class: "wide"}), make("td"), make("td", {class: "wide"}),
      make("td", {class: "number"}), make("td", {class: "number wide"})),
    (row, /** @type {Rule} */ each) => {
      const starting = each.landing > 0 ? ` (${each.landing} starting)` : "";
      const subflows = policy?.dry_run ? `${each.capped} would be` : `${each.capped}${starting}`;
      // A phone has no room for a column of directions.
      const path = make("span", {}, pathLabel(each.path), make("span", {class: "narrow"}, ` ${each.direction}`));
      fill(row, [path, each.direction, `${rangeText(each.lowest_ceil, each.ceil)}${guaranteedText(each.rate, each.lowest_ceil ?? each.ceil)}`,
        sharingText(each), subflows, size(each.bytes)]);
    });
  body.querySelector(":scope > .empty")?.remove();
  if (rules.length === 0) {
    body.append(make("tr", {class: "empty"}, make("td", {colspan: "7"}, "No rule has a cap of its own.")));
  }
  const totals = answer.budget_totals.filter((/** @type {any} */ each) => each.per === "client");
  showBudgets(byId("budgets"), totals, answer.budgets, now, policy?.time_zone ?? "UTC");
}

/**
 * Returns who shares a cap, and the number of its classes.
 * @param {Rule} each
 */
function sharingText(each) {
  const scope = SHARED[/** @type {keyof typeof SHARED} */ (each.share)] ?? each.share ?? "–";
  const number = (each.classes ?? 0) > 1 ? `: ${counted(each.classes ?? 0, "class", "classes")}` : "";
  return `${scope}${number}${(each.shared_classes ?? 0) > 0 ? ", with other paths" : ""}`;
}

/** The page that shows the effect that a policy would have. */
export class WhatIfPage {
  constructor() {
    byId("what-if").addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#evaluate();
    });
    byId("what-if-start").addEventListener("click", () => this.#start());
  }

  /** Insert the text of the policy in force. */
  async #start() {
    const text = byId("what-if-text");
    const result = byId("what-if-result");
    if (text.value.trim() !== "" && !confirm("Replace the text?")) return;
    try {
      const policy = await get("policy_text");
      text.value = policy.text;
      const since = `${moment(policy.since, policy.time)} (${age(policy.time - policy.since)})`;
      result.replaceChildren(make("p", {class: "message"}, `In force since ${since}, from ${policy.file}.`));
    } catch (error) {
      result.replaceChildren(make("p", {class: "message"}, `No answer: ${/** @type {Error} */ (error).message}.`));
    }
  }

  async #evaluate() {
    const result = byId("what-if-result");
    const button = byId("what-if").querySelector("button.primary");
    const policy = byId("what-if-text").value;
    if (policy.trim() === "") {
      result.replaceChildren(make("p", {class: "message"}, "Paste a policy first."));
      return;
    }
    button.disabled = true;
    result.replaceChildren(make("p", {class: "message"}, "Querying the throttler …"));
    try {
      result.replaceChildren(...resultNodes(await post("what_if", {policy})));
    } catch (error) {
      result.replaceChildren(make("p", {class: "message"}, `No answer: ${/** @type {Error} */ (error).message}.`));
    }
    button.disabled = false;
  }
}

/** @param {any} answer @returns {Node[]} */
function resultNodes(answer) {
  if (answer.errors?.length > 0) {
    return [make("p", {class: "message"}, `${counted(answer.errors.length, "problem")}; it would be refused:`),
      make("ul", {class: "errors"}, ...answer.errors.map((/** @type {string} */ each) => make("li", {}, each)))];
  }
  const changes = answer.changes ?? [];
  const dryRunNote = (/** @type {boolean|undefined} */ run) => run ? " (dry run)" : "";
  const head = make("p", {class: "verdict"}, "Capped subflows: ", make("strong", {}, String(answer.capped_now)),
    ` now${dryRunNote(answer.dry_run_now)}, `, make("strong", {}, String(answer.capped_then)),
    ` with this policy${dryRunNote(answer.dry_run_then)}.`);
  const unchanged = subflowTable("What stays capped", answer.stay_capped ?? [], answer.stay_capped_count ?? 0,
    "would be capped and treated as now", ["Cap"], each => [effectCell(each)]);
  if (changes.length === 0) return [head, make("p", {}, "No current subflow would be treated differently."), ...unchanged];
  return [head, ...subflowTable("What would change", changes, answer.changed, "would be treated differently", ["Now", "Then"],
    each => [make("td", {}, each.now), effectCell(each)]), ...unchanged];
}

/**
 * Returns a cell with a policy's effect on a subflow, and its reason.
 * @param {SubflowChange} each
 */
function effectCell(each) {
  return make("td", {}, each.then, ...(each.why ? [make("p", {class: "why-text"}, each.why)] : []));
}

/**
 * Returns a table of subflows; empty without subflows.
 * @param {string} label @param {SubflowChange[]} rows the first of all subflows @param {number} number of all subflows
 * @param {string} text about the subflows @param {string[]} titles @param {(each: SubflowChange) => Node[]} cells
 * @returns {Node[]}
 */
function subflowTable(label, rows, number, text, titles, cells) {
  if (rows.length === 0) return [];
  const table = make("table", {},
    make("caption", {}, `${counted(number, "subflow")} ${text}${number > rows.length ? `; the first ${rows.length}` : ""}`),
    make("thead", {}, make("tr", {}, ...["Connection", "Client's end", "Path", "Direction", ...titles].map(
      title => make("th", {scope: "col"}, title)))),
    make("tbody", {}, ...rows.map(each => make("tr", {},
      make("th", {scope: "row"}, make("a", {href: `#connection/${each.token}`}, each.token)), make("td", {}, each.remote),
      make("td", {}, pathLabel(each.path)), make("td", {}, each.direction), ...cells(each)))));
  return [make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, table)];
}
