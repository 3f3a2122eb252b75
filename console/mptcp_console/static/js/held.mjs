// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Sentences about a held time: which of its events are shown, how many there were, and why something is unknown. Pure.
 *
 * @typedef {{since: number|null, from: number, to: number, kinds: Record<string, number>}} Counted
 * @typedef {{time: number, more: boolean, since: number|null, events: import("./types.mjs").Happening[], counted: Counted}} Around
 *   *since*: from here on all events are kept; *counted*: numbers of events, and since when they are complete
 * @typedef {{state: "asked"}|{state: "failed", why: string}|{state: "known", answer: Around}} Nearby
 */
import {clock} from "./format.mjs";

/** Seconds before and after the time. */
export const AROUND = 15;

/**
 * The text in place of events if there is none to show.
 * @param {Nearby} nearby @param {number} time @returns {string}
 */
export function noEvents(nearby, time) {
  if (nearby.state === "asked") return "Loading …";
  if (nearby.state === "failed") return `The events of that time are not available: ${nearby.why}.`;
  const {since} = nearby.answer;
  return since !== null && since <= time - AROUND ? `Nothing happened within ${AROUND} s of this time.` : "No event of that time is kept.";
}

/**
 * A sentence about events that are not shown.
 * @param {Nearby} nearby @param {number} time @returns {string} usually empty
 */
export function eventsNote(nearby, time) {
  if (nearby.state !== "known") return "";
  const {events, more, since, counted: numbers} = nearby.answer;
  const parts = [];
  if (more) {
    parts.push(`Shown are the ${events.length} nearest, of ${clock(events[0].time)} to ${clock(Number(events.at(-1)?.time))}.`);
  }
  const isWhole = since !== null && since <= time - AROUND;
  if (!isWhole && since !== null) parts.push(`All events are kept since ${clock(since)}, none or some from before.`);
  if (more || !isWhole) parts.push(countsText(numbers));
  return parts.join(" ");
}

/** @param {Counted} numbers @returns {string} */
function countsText({since, from, to, kinds}) {
  if (since === null || since >= to) {
    const until = since === null ? "" : ` before ${clock(since)}`;
    return `How many there were is not known${until}: the console or the throttler began then, or missed some.`;
  }
  const begin = Math.max(from, since);
  const most = Object.entries(kinds).sort(([, a], [, b]) => b - a).map(([kind, count]) => `${count.toLocaleString("en")} ${kind || "other"}`);
  return `From ${clock(begin)} to ${clock(to)} there were ${most.length === 0 ? "none" : most.join(", ")}.`;
}

/**
 * The text in place of rates if none is known for a time.
 * @param {number|null|undefined} since time of the first kept value; null if there is none @param {number} time
 */
export function noRates(since, time) {
  if (since === null || since === undefined) return "Nothing is known yet.";
  if (time < since) return `Nothing is kept of this time: what the console keeps begins at ${clock(since)}.`;
  return "No rate is known of this time: the throttler did not answer then, or had just begun.";
}
