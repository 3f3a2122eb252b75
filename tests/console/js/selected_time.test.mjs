// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import * as selectedTime from "../../../console/mptcp_console/static/js/selected_time.mjs";
import {clock} from "../../../console/mptcp_console/static/js/format.mjs";

const NOW = 1_795_000_000;
const EVENT = {serial: 1, time: NOW, kind: "applied", text: "a cap"};

function knownEvents({events = [], more = false, since = NOW - 600, counted = {}} = {}) {
  const numbers = {since: NOW - 1800, from: NOW - 20, to: NOW + 20, kinds: {}, ...counted};
  return {state: "known", answer: {time: NOW + 60, more, since, events, counted: numbers}};
}

test("the page states that nothing happened only if that is known", () => {
  assert.equal(selectedTime.noEventsText(knownEvents(), NOW), "No events within 15 s of this time.");
  assert.equal(selectedTime.noEventsText(knownEvents({since: NOW - 14}), NOW), "No events of that time are stored.");
  assert.equal(selectedTime.noEventsText(knownEvents({since: null}), NOW), "No events of that time are stored.");
  assert.equal(selectedTime.noEventsText({state: "requested"}, NOW), "Loading …");
  assert.equal(selectedTime.noEventsText({state: "failed", why: "the console does not answer"}, NOW),
    "The events of that time are not available: the console does not answer.");
});

test("no note appears if all events are shown", () => {
  assert.equal(selectedTime.eventsNote(knownEvents({events: [EVENT]}), NOW), "");
  assert.equal(selectedTime.eventsNote(knownEvents(), NOW), "");
  assert.equal(selectedTime.eventsNote({state: "requested"}, NOW), "");
});

test("a note names the shown part and the number of events", () => {
  const events = [EVENT, {...EVENT, time: NOW + 2}];
  assert.equal(selectedTime.eventsNote(knownEvents({events, more: true, counted: {kinds: {lifted: 20, applied: 1203}}}), NOW),
    `Only the 2 nearest are shown, from ${clock(NOW)} to ${clock(NOW + 2)}. From ${clock(NOW - 20)} to ${clock(NOW + 20)} there were 1,203 applied, 20 lifted.`);
});

test("a note gives the numbers of dropped events", () => {
  const incomplete = knownEvents({since: NOW + 300, counted: {kinds: {applied: 7}}});
  assert.equal(selectedTime.eventsNote(incomplete, NOW),
    `Events are complete only since ${clock(NOW + 300)}. From ${clock(NOW - 20)} to ${clock(NOW + 20)} there were 7 applied.`);
  assert.match(selectedTime.eventsNote(knownEvents({since: NOW + 300}), NOW), /there were none\.$/);
  assert.match(selectedTime.eventsNote(knownEvents({since: NOW + 300, counted: {since: NOW - 5, kinds: {applied: 7}}}), NOW),
    new RegExp(`From ${clock(NOW - 5)} to ${clock(NOW + 20)} there were 7 applied`));
});

test("events that were not counted are not reported as none", () => {
  const note = selectedTime.eventsNote(knownEvents({since: NOW + 300, counted: {since: NOW + 300}}), NOW);
  assert.match(note, new RegExp(`Their number is unknown before ${clock(NOW + 300)}`));
  assert.doesNotMatch(note, /none\.$/);
  assert.match(selectedTime.eventsNote(knownEvents({since: null, counted: {since: null}}), NOW), /unknown: the console or the throttler started then/);
});

test("a missing rate is explained", () => {
  assert.equal(selectedTime.noRatesText(null, NOW), "No data yet.");
  assert.equal(selectedTime.noRatesText(NOW + 1, NOW), `No data for this time: the console's data begin at ${clock(NOW + 1)}.`);
  assert.match(selectedTime.noRatesText(NOW - 60, NOW), /the throttler did not answer/);
});
