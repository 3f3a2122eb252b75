// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import {addressHint, addressOf} from "../../../console/mptcp_console/static/js/addresses.mjs";

test("a whole address is normalized to the throttler's notation", () => {
  const cases = [["10.77.1.2", "10.77.1.2"], [" 10.77.1.2 ", "10.77.1.2"], ["FD77::1", "fd77::1"], ["fd77:0:0:0:0:0:0:1", "fd77::1"],
    ["FD77:0001::000A", "fd77:1::a"], ["::", "::"], ["::1", "::1"], ["1::", "1::"], ["1:0:0:2:0:0:0:3", "1:0:0:2::3"],
    ["1:0:2:3:4:5:6:7", "1:0:2:3:4:5:6:7"], ["1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"], ["64:ff9b::192.0.2.1", "64:ff9b::c000:201"]];
  for (const [text, address] of cases) assert.deepEqual(addressOf(text), {kind: "whole", address}, text);
});

test("the beginning of an address counts as incomplete, not as wrong", () => {
  for (const text of ["1", "10", "300", "10.", "10.77", "10.77.1", "10.77.1.", "fd77", "fd77:", "fd77:1", "fd77:1:", "fd77::1:", ":", "1:2:3:4:5:6:7",
    "64:ff9b::192.0"]) {
    assert.deepEqual(addressOf(text), {kind: "incomplete", address: ""}, text);
  }
});

test("text that cannot become an address counts as wrong", () => {
  for (const text of ["wifi", "10.77.300", "10..1", ".1", "10.77.1.2.", "10.77.1.2.3", "10.077", "fd77:::1", "1::2::3", ":1", "fd777:", "12345", "g::",
    "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8:", "1:2:3:4:5:6:7:8::", "10.77.1.2/24", "fe80::1%eth0"]) {
    assert.deepEqual(addressOf(text), {kind: "wrong", address: ""}, text);
  }
  assert.equal(addressOf("  ").kind, "none");
});

test("the hint describes how the field is used", () => {
  assert.equal(addressHint("whole"), "");
  assert.equal(addressHint("none"), "");
  assert.match(addressHint("incomplete"), /incomplete: all clients/);
  assert.match(addressHint("wrong"), /not an IP address or a known name: all clients/);
});
