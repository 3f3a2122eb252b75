// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Sentences about the selected time: which events around it are shown, how many there were, and why something is
 * unknown. Pure.
 *
 * @typedef {{since: number|null, from: number, to: number, kinds: Record<string, number>}} Counted
 * @typedef {{time: number, more: boolean, since: number|null, events: import("./types.mjs").LoggedEvent[], counted: Counted}} NearbyEvents
 *   *since*: since when all events are stored; *counted*: numbers of events, and since when they are complete
 * @typedef {{state: "requested"}|{state: "failed", why: string}|{state: "known", answer: NearbyEvents}} Nearby
 */
import {clock} from "./format.mjs";

/** Seconds before and after the selected time. */
export const NEARBY_SECONDS = 15;

/**
 * Returns the text to show instead of events if there are none.
 * @param {Nearby} nearby @param {number} time @returns {string}
 */
export function noEventsText(nearby, time) {
  if (nearby.state === "requested") return "Loading …";
  if (nearby.state === "failed") return `The events of that time are not available: ${nearby.why}.`;
  const {since} = nearby.answer;
  return since !== null && since <= time - NEARBY_SECONDS ? `No events within ${NEARBY_SECONDS} s of this time.` : "No events of that time are stored.";
}

/**
 * Returns a sentence about events that are not shown.
 * @param {Nearby} nearby @param {number} time @returns {string} usually empty
 */
export function eventsNote(nearby, time) {
  if (nearby.state !== "known") return "";
  const {events, more, since, counted: numbers} = nearby.answer;
  const parts = [];
  if (more) {
    parts.push(`Only the ${events.length} nearest are shown, from ${clock(events[0].time)} to ${clock(Number(events.at(-1)?.time))}.`);
  }
  const isWhole = since !== null && since <= time - NEARBY_SECONDS;
  if (!isWhole && since !== null) parts.push(`Events are complete only since ${clock(since)}.`);
  if (more || !isWhole) parts.push(countsText(numbers));
  return parts.join(" ");
}

/** @param {Counted} numbers @returns {string} */
function countsText({since, from, to, kinds}) {
  if (since === null || since >= to) {
    const until = since === null ? "" : ` before ${clock(since)}`;
    return `Their number is unknown${until}: the console or the throttler started then, or missed some.`;
  }
  const begin = Math.max(from, since);
  const counts = Object.entries(kinds).sort(([, a], [, b]) => b - a).map(([kind, count]) => `${count.toLocaleString("en")} ${kind || "other"}`);
  return `From ${clock(begin)} to ${clock(to)} there were ${counts.length === 0 ? "none" : counts.join(", ")}.`;
}

/**
 * Returns the text to show instead of rates if none is known for a time.
 * @param {number|null|undefined} since time of the first stored value; null without values @param {number} time
 */
export function noRatesText(since, time) {
  if (since === null || since === undefined) return "No data yet.";
  if (time < since) return `No data for this time: the console's data begin at ${clock(since)}.`;
  return "No rate is known for this time: the throttler did not answer then, or had just started.";
}
