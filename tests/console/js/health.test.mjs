// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";
import * as health from "../../../console/mptcp_console/static/js/health.mjs";

const SUMMARY = JSON.parse(readFileSync(new URL("../answers/summary.json", import.meta.url), "utf8"));

test("the throttler's figures are shown with descriptions", () => {
  const facts = Object.fromEntries(health.healthFacts(SUMMARY));
  assert.equal(facts["Version"], "0.1.0, process 4711");
  assert.equal(facts["Captures on"], "wan0; not on wan1");
  assert.equal(facts["Budget usage saved to disk"], "no: ledger l: disk full");
  assert.equal(facts["Caps start gradually (BPF)"], "yes");
  assert.match(facts["Short connections fully counted (BPF)"], /^no: this kernel cannot/);
  assert.equal(facts["Time from a join to its cap"], "half within 10 ms, 95 % over 1 s (of 4)");
  assert.equal(facts["Segments missed by the capture"], "5");
  assert.equal(facts["Path-manager events lost"], "1");
  assert.equal(facts["Full resyncs with the kernel"], "2");
  assert.equal(facts["Contradictory kernel events"], "3");
  assert.equal(facts["Changes refused by the kernel"], "8");
  assert.equal(facts["Changes repaired in the kernel"], "9");
  assert.equal(facts["Caps relaxed by the guard"], "1 connection now; 4 times since the start");
  assert.equal(facts["Longest pause of its event loop"], "32 ms");
});

test("figures that an older throttler lacks are shown as unknown", () => {
  const facts = Object.fromEntries(health.healthFacts({time: 1, version: "0.0.1", pid: 1}));
  for (const name of ["Captures on", "Caps start gradually (BPF)", "Time from a join to its cap", "Segments missed by the capture", "Changes refused by the kernel"]) {
    assert.equal(facts[name], "\u2013", name);
  }
});

test("the reaction time is summarized by two quantiles", () => {
  const times = {le: [0.001, 0.01, 1], count: [50, 95, 100], total: 100, sum: 1};
  assert.equal(health.reactionText(times), "half within 1 ms, 95 % within 10 ms (of 100)");
  assert.equal(health.reactionText({...times, count: [0, 94, 94]}), "half within 10 ms, 95 % over 1 s (of 100)");
  assert.equal(health.reactionText({...times, le: [0.001, 0.01, 5]}), "half within 1 ms, 95 % within 10 ms (of 100)");
  assert.equal(health.reactionText({le: [1], count: [0], total: 0, sum: 0}), "none yet");
});
