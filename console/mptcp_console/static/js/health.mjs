// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The throttler's own figures: its observations, losses, and delays of caps. Pure.
 */
import {age, counted} from "./format.mjs";

/** @typedef {{le: number[], count: number[], total: number, sum: number}} Histogram */

/**
 * Returns the figures of one answer about the policy; figures that an older throttler lacks are shown as "–".
 * @param {any} answer @returns {[string, string][]}
 */
export function healthFacts(answer) {
  const observers = answer.counters?.observers, tracker = answer.counters?.tracker;
  const reconcilers = [answer.counters?.reconciler, answer.counters?.upload_reconciler].filter(each => each);
  const sum = (/** @type {string} */ name) => reconcilers.length === 0 ? undefined
    : reconcilers.reduce((all, each) => all + (each[name] ?? 0), 0);
  const {loop, guard} = answer;
  return [
    ["Version", `${answer.version ?? "–"}, process ${answer.pid ?? "–"}`],
    ["Running for", answer.started ? age(answer.time - answer.started) : "–"],
    ["Captures on", capturesText(answer.captures)],
    ["Budget usage saved to disk", answer.ledger_error ? `no: ${answer.ledger_error}` : "yes"],
    ["Caps start gradually (BPF)", bpfText(answer.bpf?.pacing)],
    ["Short connections fully counted (BPF)", bpfText(answer.bpf?.counting)],
    ["Time from a join to its cap", reactionText(answer.reaction)],
    ["Time to a cap's full effect, download", reactionText(answer.effect?.down)],
    ["Time to a cap's full effect, upload", reactionText(answer.effect?.up)],
    ["Segments missed by the capture", number(observers?.segments_dropped)],
    ["Path-manager events lost", number(observers?.kernel_events_lost)],
    ["Full resyncs with the kernel", number(observers?.resyncs)],
    ["Contradictory kernel events", number(tracker?.disagreements)],
    ["Not tracked: table full", number(tracker?.overflows)],
    ["Changes refused by the kernel", number(sum("failures"))],
    ["Changes repaired in the kernel", number(sum("repairs"))],
    ["Caps relaxed by the guard", `${counted(guard?.relaxed ?? 0, "connection")} now; ${counted(guard?.interventions ?? 0, "time")} since the start`],
    ["Longest pause of its event loop", loop?.longest === undefined ? "–" : `${(loop.longest * 1000).toFixed(0)} ms`],
    ["Pauses above 50 ms", number(loop?.late)],
  ];
}

/** @param {Record<string, boolean>|null|undefined} captures by interface @returns {string} */
export function capturesText(captures) {
  if (!captures) return "–";
  const on = Object.keys(captures).filter(each => captures[each]), off = Object.keys(captures).filter(each => !captures[each]);
  const parts = on.length > 0 ? [on.join(", ")] : [];
  if (off.length > 0) parts.push(`not on ${off.join(", ")}`);
  return parts.join("; ") || "no interface";
}

/** @param {boolean|undefined} works whether a BPF program works @returns {string} */
function bpfText(works) {
  return works === undefined ? "–" : works ? "yes" : "no: this kernel cannot run the BPF program";
}

/** @param {Histogram|null|undefined} times @returns {string} median, 95th percentile, and number */
export function reactionText(times) {
  if (!times) return "–";
  if (times.total === 0) return "none yet";
  return `half ${bucketText(times, 0.5)}, 95 % ${bucketText(times, 0.95)} (of ${times.total.toLocaleString("en")})`;
}

/** @param {Histogram} times @param {number} quantile @returns {string} its bucket */
function bucketText({le, count, total}, quantile) {
  const index = count.findIndex(each => each >= quantile * total);
  return index < 0 ? `over ${seconds(Number(le.at(-1)))}` : `within ${seconds(le[index])}`;
}

/** @param {number} value @returns {string} */
function seconds(value) {
  return value < 1 ? `${Number((value * 1000).toPrecision(3))} ms` : `${value} s`;
}

/** @param {number|undefined} value @returns {string} */
function number(value) {
  return value === undefined ? "–" : value.toLocaleString("en");
}
