// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Draws budgets as bars: on the live page, and on the policy's page.
 */
import {updateChildren, make, setText} from "./dom.mjs";
import {counted, timeInZone, percent, size} from "./format.mjs";
import {withNames} from "./names.mjs";

/** @typedef {{name: string, client: string|null, used: number, volume: number, until: number|null, accounts?: number, used_up?: number}} Budget */

/**
 * @param {Element} list @param {Budget[]} totals of budgets per client @param {Budget[]} accounts
 * @param {number} now @param {string} zone the policy's time zone, in which budgets are reset
 */
export function showBudgets(list, totals, accounts, now, zone) {
  const shown = [...totals.map(each => ({...each, client: null})), ...accounts];
  updateChildren(list, shown, each => `${each.name} ${each.client ?? ""}`, bar, (item, each) => update(item, each, now, zone));
  list.querySelector(":scope > .empty")?.remove();
  if (shown.length === 0) list.append(make("li", {class: "empty"}, "The policy has no budget."));
}

/** @param {Budget} each */
function title(each) {
  if (each.client !== null) return `${each.name}, client ${withNames(each.client)}`;
  return each.accounts === undefined ? each.name : `${each.name}, all clients together`;
}

/** @param {Budget} each */
function bar(each) {
  const meter = make("meter", {min: "0", max: "1", optimum: "0", low: "0.8", high: "0.999", "aria-label": `used of budget ${title(each)}`});
  return make("li", {}, make("div", {class: "budget-head"}, make("strong"), make("span")), meter, make("p", {class: "help"}));
}

/** @param {HTMLElement} item @param {Budget} each @param {number} now @param {string} zone */
function update(item, each, now, zone) {
  const [head, meter, until] = /** @type {[HTMLElement, HTMLMeterElement, HTMLElement]} */ (/** @type {any} */ ([...item.children]));
  const text = usedText(each);
  setText(/** @type {Element} */ (head.firstElementChild), title(each));
  setText(/** @type {Element} */ (head.lastElementChild), text);
  item.className = isUsedUp(each) ? "used-up" : "";
  meter.value = each.volume > 0 ? Math.min(1, each.used / each.volume) : 0;
  meter.textContent = text;
  const clients = each.accounts === undefined ? [] : [`${counted(each.accounts, "client")}, ${each.used_up} over their budget`];
  setText(until, [...clients, ...(each.until === null ? [] : [`restarts ${timeInZone(each.until, now, zone)}`])].join("; "));
}

/** @param {{used: number, volume: number}} each @returns {string} */
export function usedText(each) {
  return `${size(each.used)} of ${size(each.volume)} (${percent(each.used, each.volume)})`;
}

/** @param {{used: number, volume: number, accounts?: number}} each */
export function isUsedUp(each) {
  return each.accounts === undefined && each.volume > 0 && each.used >= each.volume;
}
