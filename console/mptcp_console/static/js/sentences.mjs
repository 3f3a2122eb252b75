// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Sentences for the screen reader, the throttler's state, and caps. Pure.
 */
import {clock, configuredRate, counted, timeInZone, moment, rate} from "./format.mjs";
import {pathName} from "./series.mjs";

/** @typedef {import("./series.mjs").PathAtTime} PathAtTime */

const SHARE_SUFFIXES = {path: "", client: " per client", connection: " per connection"};

/** @param {import("./series.mjs").Cap} each */
export function capText(each) {
  const range = `${rangeText(each.lowest, each.cap)}${SHARE_SUFFIXES[/** @type {keyof typeof SHARE_SUFFIXES} */ (each.share)] ?? ""}`;
  const all = each.total > each.cap ? `, ${configuredRate(each.total)} in all` : "";
  return `${range}${guaranteedText(each.guaranteed, each.lowest)}${all}${each.shared > 0 ? ", shared with other paths" : ""}`;
}

/**
 * Returns labels for a cap in the graph, longest first.
 * @param {import("./series.mjs").Cap} each @returns {string[]}
 */
export function capLabels(each) {
  return [`cap ${capText(each)}`, `cap ${rangeText(each.lowest, each.cap)}`, configuredRate(each.total)];
}

/**
 * Formats the ceil of classes, which may differ.
 * @param {number|null|undefined} lowest @param {number|null} highest
 */
export function rangeText(lowest, highest) {
  return lowest !== null && lowest !== undefined && highest !== null && lowest < highest
    ? `${configuredRate(lowest)} to ${configuredRate(highest)}` : configuredRate(highest);
}

/**
 * Formats the rate that HTB guarantees, if it is below the ceil.
 * @param {number|null} rate @param {number|null} ceil
 */
export function guaranteedText(rate, ceil) {
  return rate !== null && ceil !== null && rate < ceil ? `, ${configuredRate(rate)} of it guaranteed` : "";
}

/**
 * Returns the state at one time as a sentence.
 * @param {number} time @param {PathAtTime[]} paths
 */
export function momentText(time, paths) {
  if (paths.length === 0) return `${clock(time)}: no data`;
  const parts = paths.map(({path, rate: value, caps}) => {
    const capTexts = caps.map(each => `cap ${capText(each)} by ${each.rule}`).join(", ");
    return `${pathName(path)} ${value === null ? "unknown" : rate(value)}${capTexts ? ` (${capTexts})` : ""}`;
  });
  return `${clock(time)}: ${parts.join(", ")}`;
}

/**
 * Returns a sentence about what is not drawn, and why.
 * @param {{morePaths: number, moreCaps: number, highCaps: number}} more @param {number} moreRules number of capping rules that the page does not receive
 * @returns {string} usually empty
 */
export function notDrawnText({morePaths, moreCaps, highCaps}, moreRules) {
  const parts = [];
  if (morePaths > 0) parts.push(counted(morePaths, "more path"));
  if (moreCaps > 0) parts.push(counted(moreCaps, "more cap"));
  if (highCaps > 0) parts.push(`${counted(highCaps, "cap")} far above all rates`);
  const drawn = parts.length === 0 ? "" : `Not drawn: ${parts.join(", ")}. The table has them. `;
  const listed = moreRules === 0 ? "" : `Neither drawn nor in the table: ${counted(moreRules, "more cap")} with fewer subflows; the page Policy has all.`;
  return (drawn + listed).trim();
}

/**
 * Why the page receives no snapshots; null while it receives them.
 * @typedef {{since: number, why: "broken"|"full"}|null} Lost
 */

/**
 * Returns why the page is outdated; null if it is not. Changes are read out, so the text has no growing numbers.
 * @param {import("./types.mjs").Throttler|null} throttler @param {Lost} lost
 */
export function troubleText(throttler, lost) {
  if (lost?.why === "full") {
    return `Too many pages of the console are open, so this one has not been updated since ${clock(lost.since)}: close others. `
      + "The page tries again every five seconds, and shows the state of that time.";
  }
  if (lost !== null) {
    return `The console has not answered since ${clock(lost.since)}; the page tries again, and shows the state of that time.`;
  }
  if (throttler === null || throttler.state === "up") return null;
  const text = throttler.text.charAt(0).toUpperCase() + throttler.text.slice(1);
  return `${text}. Since ${clock(throttler.since)}; the console tries again every second. ${CONSEQUENCES[throttler.state]}`;
}

/** The consequences for the proxy's clients: a throttler that stops removes all caps; if it crashes, they remain. */
const CONSEQUENCES = {
  up: "",
  down: "The proxy still serves, and nothing is capped: a stop removes all caps.",
  crashed: "The proxy still serves. Existing caps stay until the throttler is started again and takes them over.",
  silent: "The proxy still serves, and existing caps stay.",
  refused: "This does not affect proxy and throttler.",
  odd: "This does not affect proxy and throttler.",
};

/**
 * Returns the problems of a throttler that answers, as one text.
 * @param {string[]} faults @returns {string} usually empty
 */
export function faultsText(faults) {
  return faults.length === 0 ? "" : `${faults.join(". ")}.`;
}

/**
 * Returns a sentence about a refused reload, which may be days ago.
 * @param {{time: number, errors: string[]}} refused @param {number} now
 */
export function refusedText(refused, now) {
  return `A reload was refused at ${moment(refused.time, now)}; the previous policy is in force. ${refused.errors.join(" ")}`;
}

/** @param {import("./types.mjs").Throttler|null} throttler @param {Lost} lost @param {number} faults of a throttler that answers */
export function stateText(throttler, lost, faults = 0) {
  if (lost !== null) return lost.why === "full" ? "console full" : "console lost";
  if (throttler === null) return "connecting";
  if (throttler.state === "up" && faults > 0) return `live, ${counted(faults, "fault")}`;
  return {up: "live", down: "throttler down", crashed: "throttler crashed", silent: "throttler hangs", refused: "no access", odd: "invalid answer"}[
    throttler.state];
}

/**
 * Returns whether caps changed, so that the shown connections and rules are outdated. The numbers are compared, too,
 * because events arrive later than the numbers if there are many.
 * @param {import("./types.mjs").Overview|null} before @param {import("./types.mjs").Snapshot} snapshot
 */
export function changesCaps(before, {now, events, more_events}) {
  if (more_events || events.some(each => each.kind === "applied" || each.kind === "lifted")) return true;
  return before !== null && now !== null && (before.capped !== now.capped || before.landing !== now.landing);
}

/**
 * Returns the announcement of events; null without one.
 * @param {import("./types.mjs").LoggedEvent[]} events
 */
export function announcement(events) {
  const caps = events.filter(each => each.kind === "applied" || each.kind === "lifted");
  const others = events.filter(each => each.kind === "reload" || each.kind === "fault" || each.kind === "console");
  const texts = others.map(each => each.text);
  if (caps.length === 1) texts.push(caps[0].text);
  if (caps.length > 1) texts.push(counted(caps.length, "cap was set or lifted", "caps were set or lifted"));
  return texts.length === 0 ? null : texts.join(". ");
}

/**
 * Returns the result of a tried rule, as in `mptcp-throttler explain`: a matching rule may still cap nothing.
 * @param {import("./types.mjs").Tried} rule @param {number} now @param {string} zone of the policy
 */
export function triedText({matched, failed, until}, now, zone) {
  if (!matched) return failed ?? "does not match";
  return ["matches", failed, until === null ? null : `until ${timeInZone(until, now, zone)}`].filter(each => each !== null).join("; ");
}

/**
 * Returns the bytes of both directions.
 * @param {{bytes_sent: number|null, bytes_received: number|null}} each
 */
export function totalBytes({bytes_sent, bytes_received}) {
  return bytes_sent === null && bytes_received === null ? null : (bytes_sent ?? 0) + (bytes_received ?? 0);
}

/**
 * Returns the caps of a subflow as text, and the kind of the badge that shows them.
 * @param {import("./types.mjs").Subflow} subflow @param {boolean} dryRun whether the policy caps nothing
 * @returns {{text: string, kind: string}}
 */
export function verdict(subflow, dryRun = false) {
  /** @type {string[]} */
  const parts = [];
  const add = (/** @type {{rate: number|null, ceil: number|null, landing?: boolean}|null} */ each, /** @type {string} */ suffix) => {
    if (each === null || each.ceil === null) return;
    parts.push(`${configuredRate(each.ceil)}${suffix}${guaranteedText(each.rate, each.ceil)}${each.landing ? ", starting" : ""}`);
  };
  add(subflow, "");
  add(subflow.upload, " up");
  if (parts.length > 0 && dryRun) return {text: `${parts.join("; ")} (dry run)`, kind: "none"};
  if (parts.length > 0) return {text: parts.join("; "), kind: subflow.landing || subflow.upload?.landing ? "landing" : "capped"};
  return {text: subflow.backup ? "backup" : "none", kind: "none"};
}

/**
 * Returns why a subflow is capped or not, for each direction with a reason.
 * @param {import("./types.mjs").Subflow} subflow @returns {string}
 */
export function reasonsText({reason, upload}) {
  return upload?.reason ? `${reason}. Upload: ${upload.reason}` : reason;
}
