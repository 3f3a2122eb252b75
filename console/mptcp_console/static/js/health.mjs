/**
 * How the throttler is, in its own figures: what it sees, what it lost, how long caps take. Pure.
 */
import {age, counted} from "./format.mjs";

/** @typedef {{le: number[], count: number[], total: number, sum: number}} Histogram */

/**
 * The figures of one answer about the policy. A throttler from before some of them has these as unknown.
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
    ["Runs for", answer.started ? age(answer.time - answer.started) : "–"],
    ["Captures on", capturesText(answer.captures)],
    ["What budgets count", answer.ledger_error ? `cannot be written: ${answer.ledger_error}` : "is written"],
    ["Caps begin softly", bpfText(answer.bpf?.pacing)],
    ["Last bytes of sockets are counted", bpfText(answer.bpf?.counting)],
    ["From a join to its cap", reactionText(answer.reaction)],
    ["To a cap's full effect, down", reactionText(answer.effect?.down)],
    ["To a cap's full effect, up", reactionText(answer.effect?.up)],
    ["Segments lost by the capture", number(observers?.segments_dropped)],
    ["Losses of path manager's events", number(observers?.kernel_events_lost)],
    ["Lists of all sockets (resyncs)", number(observers?.resyncs)],
    ["The kernel contradicted itself", number(tracker?.disagreements)],
    ["Not tracked for want of room", number(tracker?.overflows)],
    ["Refused by the kernel", number(sum("failures"))],
    ["Put right in the kernel", number(sum("repairs"))],
    ["Connections relaxed by the guard", `${guard?.relaxed ?? 0} now; ${counted(guard?.interventions ?? 0, "intervention")}`],
    ["Longest pause of its loop", loop?.longest === undefined ? "–" : `${(loop.longest * 1000).toFixed(0)} ms`],
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

/** @param {boolean|undefined} is what a BPF program does @returns {string} */
function bpfText(is) {
  return is === undefined ? "–" : is ? "yes" : "no: this kernel lacks what the BPF program takes";
}

/** @param {Histogram|null|undefined} times @returns {string} how long most took, and how many there were */
export function reactionText(times) {
  if (!times) return "–";
  if (times.total === 0) return "none yet";
  return `half ${within(times, 0.5)}, 95 % ${within(times, 0.95)} (of ${times.total.toLocaleString("en")})`;
}

/** @param {Histogram} times @param {number} share of them @returns {string} the bucket that it ends in */
function within({le, count, total}, share) {
  const index = count.findIndex(each => each >= share * total);
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
