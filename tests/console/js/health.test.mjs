import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";
import * as health from "../../../console/mptcp_console/static/js/health.mjs";

const REAL = JSON.parse(readFileSync(new URL("../answers/summary.json", import.meta.url), "utf8"));

test("the figures of a throttler's answer", () => {
  const facts = Object.fromEntries(health.healthFacts(REAL));
  assert.equal(facts["Version"], "0.1.0, process 4711");
  assert.equal(facts["Captures on"], "wan0; not on wan1");
  assert.equal(facts["What budgets count"], "cannot be written: ledger l: disk full");
  assert.equal(facts["Caps begin softly"], "yes");
  assert.match(facts["Last bytes of sockets are counted"], /^no: this kernel lacks/);
  assert.equal(facts["From a join to its cap"], "half within 10 ms, 95 % over 1 s (of 4)");
  assert.equal(facts["Segments lost by the capture"], "5");
  assert.equal(facts["Losses of path manager's events"], "1");
  assert.equal(facts["Lists of all sockets (resyncs)"], "2");
  assert.equal(facts["The kernel contradicted itself"], "3");
  assert.equal(facts["Refused by the kernel"], "8");
  assert.equal(facts["Put right in the kernel"], "9");
  assert.equal(facts["Connections relaxed by the guard"], "1 now; 4 interventions");
  assert.equal(facts["Longest pause of its loop"], "32 ms");
});

test("what an older throttler does not say is unknown, not well", () => {
  const facts = Object.fromEntries(health.healthFacts({time: 1, version: "0.0.1", pid: 1}));
  for (const name of ["Captures on", "Caps begin softly", "From a join to its cap", "Segments lost by the capture", "Refused by the kernel"]) {
    assert.equal(facts[name], "\u2013", name);
  }
});

test("how long caps took", () => {
  const times = {le: [0.001, 0.01, 1], count: [50, 95, 100], total: 100, sum: 1};
  assert.equal(health.reactionText(times), "half within 1 ms, 95 % within 10 ms (of 100)");
  assert.equal(health.reactionText({...times, count: [0, 94, 94]}), "half within 10 ms, 95 % over 1 s (of 100)");
  assert.equal(health.reactionText({...times, le: [0.001, 0.01, 5]}), "half within 1 ms, 95 % within 10 ms (of 100)");
  assert.equal(health.reactionText({le: [1], count: [0], total: 0, sum: 0}), "none yet");
});
