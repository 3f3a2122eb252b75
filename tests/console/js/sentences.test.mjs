// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import * as sentences from "../../../console/mptcp_console/static/js/sentences.mjs";
import {clock} from "../../../console/mptcp_console/static/js/format.mjs";

const NOW = 1_795_000_000;
const UP = {state: "up", since: NOW, text: ""};
const DOWN = {state: "down", since: NOW - 65, text: "the throttler does not run"};
const CAP = {rule: "a", share: "path", cap: 5e6, lowest: 5e6, guaranteed: 5e6, total: 5e6, shared: 0, capped: 2};

test("the graph has a summary in one sentence", () => {
  const paths = [
    {path: "ethernet", rate: 4.85e6, caps: [{...CAP, rule: "spare"}]},
    {path: "wifi", rate: null, caps: []},
  ];
  assert.equal(sentences.momentText(NOW, paths), `${clock(NOW)}: ethernet 4.85 Mbit/s (cap 5 Mbit/s by spare), wifi unknown`);
  assert.equal(sentences.momentText(NOW, []), `${clock(NOW)}: no data`);
  assert.equal(sentences.capText({...CAP, share: "client", guaranteed: 2.5e6}), "5 Mbit/s per client, 2.5 Mbit/s of it guaranteed");
  assert.equal(sentences.capText({...CAP, share: "client", lowest: 1e6, guaranteed: 1e6, total: 11e6}),
    "1 Mbit/s to 5 Mbit/s per client, 11 Mbit/s in all");
  assert.equal(sentences.capText({...CAP, shared: 1}), "5 Mbit/s, shared with other paths");
});

const LOST = {since: NOW - 5, why: "broken"};

test("the page explains why it is outdated, and shows nothing while it is current", () => {
  assert.equal(sentences.troubleText(null, null), null);
  assert.equal(sentences.troubleText(UP, null), null);
  const down = sentences.troubleText(DOWN, null);
  assert.match(down, /^The throttler does not run\. Since \d\d:\d\d:\d\d; the console tries again/);
  // A stop removes all caps, and a crash none.
  assert.match(down, /nothing is capped/);
  assert.match(sentences.troubleText({...DOWN, state: "crashed"}, null), /Existing caps stay until the throttler is started again/);
  assert.match(sentences.troubleText(DOWN, LOST), /^The console has not answered since/);
  assert.match(sentences.troubleText(UP, LOST), /^The console has not answered since/);
  assert.deepEqual([[null, null], [UP, null], [DOWN, null], [UP, LOST]].map(each => sentences.stateText(...each)),
    ["connecting", "live", "throttler down", "console lost"]);
});

test("a full console is not reported as lost", () => {
  const full = {since: NOW - 5, why: "full"};
  assert.match(sentences.troubleText(UP, full), /^Too many pages of the console are open/);
  assert.equal(sentences.stateText(UP, full), "console full");
});

test("faults of a live throttler are shown and counted", () => {
  assert.equal(sentences.faultsText([]), "");
  assert.equal(sentences.faultsText(["Nothing is captured on wan0", "5 segments lost"]), "Nothing is captured on wan0. 5 segments lost.");
  assert.deepEqual([1, 2].map(faults => sentences.stateText(UP, null, faults)), ["live, 1 fault", "live, 2 faults"]);
  assert.equal(sentences.stateText(DOWN, null, 1), "throttler down");
});

test("a refused reload of another day is shown with its date", () => {
  const refused = {time: NOW - 65, errors: ["policy.yaml:2: rules: is required."]};
  assert.equal(sentences.refusedText(refused, NOW),
    `A reload was refused at ${clock(NOW - 65)}; the previous policy is in force. policy.yaml:2: rules: is required.`);
  assert.match(sentences.refusedText(refused, NOW + 2 * 86_400), /^A reload was refused at \d{4}-\d\d-\d\d \d\d:\d\d; the previous policy/);
});

test("announcements of events are short", () => {
  const applied = {serial: 1, time: NOW, kind: "applied", text: "10.77.1.2:40000 capped at 5 Mbit/s"};
  assert.equal(sentences.announcement([]), null);
  assert.equal(sentences.announcement([{...applied, kind: "decided"}]), null);
  assert.equal(sentences.announcement([applied]), applied.text);
  assert.equal(sentences.announcement([applied, {...applied, kind: "lifted"}]), "2 caps were set or lifted");
  assert.equal(sentences.announcement([{...applied, kind: "fault", text: "a fault"}, applied]), `a fault. ${applied.text}`);
});

test("a change of caps is detected", () => {
  const now = {capped: 2, landing: 0};
  const snapshot = {now, events: [], more_events: false};
  assert.equal(sentences.changesCaps(now, snapshot), false);
  assert.equal(sentences.changesCaps(null, snapshot), false);
  assert.equal(sentences.changesCaps(now, {...snapshot, now: null}), false);
  assert.equal(sentences.changesCaps(now, {...snapshot, events: [{kind: "decided"}]}), false);
  for (const kind of ["applied", "lifted"]) assert.ok(sentences.changesCaps(now, {...snapshot, events: [{kind: "closed"}, {kind}]}));
  assert.ok(sentences.changesCaps(now, {...snapshot, more_events: true}));
  assert.ok(sentences.changesCaps({...now, capped: 1}, snapshot));
  assert.ok(sentences.changesCaps({...now, landing: 1}, snapshot));
});

test("the result of a tried rule is shown in words", () => {
  const tried = {rule: "night", kind: "throttle", matched: true, failed: null, until: null};
  assert.equal(sentences.triedText(tried, NOW, "UTC"), "matches");
  assert.equal(sentences.triedText({...tried, failed: "lifted: the last usable path", until: Date.UTC(2026, 10, 20, 13) / 1000}, Date.UTC(2026, 10, 20) / 1000, "UTC"),
    "matches; lifted: the last usable path; until 13:00 (UTC)");
  assert.equal(sentences.triedText({...tried, matched: false, failed: "outside its hours", until: NOW}, NOW, "UTC"), "outside its hours");
  assert.equal(sentences.triedText({...tried, matched: false}, NOW, "UTC"), "does not match");
});

test("paths and caps that are not drawn are counted", () => {
  assert.equal(sentences.notDrawnText({morePaths: 0, moreCaps: 0, highCaps: 0}, 0), "");
  assert.equal(sentences.notDrawnText({morePaths: 1, moreCaps: 3, highCaps: 0}, 0), "Not drawn: 1 more path, 3 more caps. The table has them.");
  assert.equal(sentences.notDrawnText({morePaths: 0, moreCaps: 0, highCaps: 2}, 0), "Not drawn: 2 caps far above all rates. The table has them.");
  const listed = "Neither drawn nor in the table: 51 more caps with fewer subflows; the page Policy has all.";
  assert.equal(sentences.notDrawnText({morePaths: 0, moreCaps: 88, highCaps: 0}, 51), `Not drawn: 88 more caps. The table has them. ${listed}`);
  assert.equal(sentences.notDrawnText({morePaths: 0, moreCaps: 0, highCaps: 0}, 51), listed);
});

test("labels of a cap are ordered from long to short", () => {
  const labels = sentences.capLabels({...CAP, share: "client", lowest: 1e6, guaranteed: 1e6, total: 11e6, shared: 2});
  assert.deepEqual(labels, ["cap 1 Mbit/s to 5 Mbit/s per client, 11 Mbit/s in all, shared with other paths", "cap 1 Mbit/s to 5 Mbit/s", "11 Mbit/s"]);
});

test("reasons are shown for each direction", () => {
  assert.equal(sentences.reasonsText({reason: "no rule matches", upload: null}), "no rule matches");
  assert.equal(sentences.reasonsText({reason: "no rule matches", upload: {reason: "rule a caps it"}}), "no rule matches. Upload: rule a caps it");
});

test("bytes of both directions are added", () => {
  assert.equal(sentences.totalBytes({bytes_sent: 5, bytes_received: 70}), 75);
  assert.equal(sentences.totalBytes({bytes_sent: null, bytes_received: 70}), 70);
  assert.equal(sentences.totalBytes({bytes_sent: null, bytes_received: null}), null);
});

test("the verdict shows a subflow's cap in each direction", () => {
  const subflow = {rate: null, ceil: null, landing: false, backup: false, upload: null};
  assert.deepEqual(sentences.verdict(subflow), {text: "none", kind: "none"});
  assert.deepEqual(sentences.verdict({...subflow, backup: true}), {text: "backup", kind: "none"});
  const down = {rate: 5e6, ceil: 5e6}, up = {rate: 1e6, ceil: 1e6};
  assert.deepEqual(sentences.verdict({...subflow, ...down}), {text: "5 Mbit/s", kind: "capped"});
  assert.deepEqual(sentences.verdict({...subflow, ...down, landing: true}), {text: "5 Mbit/s, starting", kind: "landing"});
  assert.deepEqual(sentences.verdict({...subflow, upload: up}), {text: "1 Mbit/s up", kind: "capped"});
  assert.deepEqual(sentences.verdict({...subflow, upload: {...up, landing: true}}), {text: "1 Mbit/s up, starting", kind: "landing"});
  assert.deepEqual(sentences.verdict({...subflow, ...down, upload: up}), {text: "5 Mbit/s; 1 Mbit/s up", kind: "capped"});
  assert.deepEqual(sentences.verdict({...subflow, ...down, ceil: 10e6, upload: {...up, ceil: 2e6}}),
    {text: "10 Mbit/s, 5 Mbit/s of it guaranteed; 2 Mbit/s up, 1 Mbit/s of it guaranteed", kind: "capped"});
  assert.deepEqual(sentences.verdict({...subflow, ...down}, true), {text: "5 Mbit/s (dry run)", kind: "none"});
  assert.deepEqual(sentences.verdict(subflow, true), {text: "none", kind: "none"});
});
