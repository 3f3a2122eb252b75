// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import * as format from "../../../console/mptcp_console/static/js/format.mjs";

test("measured rates have three digits", () => {
  const cases = [[0, "0 bit/s"], [999, "999 bit/s"], [999.6, "1.00 kbit/s"], [4_851_234, "4.85 Mbit/s"],
    [28_449_999, "28.4 Mbit/s"], [99_949_999, "99.9 Mbit/s"], [99_950_001, "100 Mbit/s"], [999_600_000, "1.00 Gbit/s"],
    [null, "–"], [undefined, "–"]];
  for (const [bits, text] of cases) assert.equal(format.rate(bits), text);
});

test("a cap is shown without trailing zeros", () => {
  const cases = [[5_000_000, "5 Mbit/s"], [512_000, "512 kbit/s"], [1_500_000, "1.5 Mbit/s"], [1e9, "1 Gbit/s"],
    [8000, "8 kbit/s"], [500, "500 bit/s"], [null, "–"]];
  for (const [bits, text] of cases) assert.equal(format.configuredRate(bits), text);
});

test("sizes, ages, shares and round-trip times have short texts", () => {
  assert.deepEqual(format.unitOf(54e6), {factor: 1e6, unit: "Mbit/s"});
  assert.deepEqual(format.unitOf(10), {factor: 1, unit: "bit/s"});
  assert.equal(format.size(12_700_000), "12.7 MB");
  assert.equal(format.size(0), "0 B");
  assert.equal(format.size(1.2e12), "1.20 TB");
  assert.deepEqual([0, 59, 60, 3599, 3600, 90_000, -5].map(format.age),
    ["0 s", "59 s", "1 min", "59 min", "1 h 0 min", "1 d 1 h", "0 s"]);
  assert.equal(format.percent(3, 1200), "0.3 %");
  assert.equal(format.percent(24, 100), "24 %");
  assert.equal(format.percent(1, 0), "–");
  assert.equal(format.milliseconds(0.0214), "21 ms");
  assert.equal(format.milliseconds(0.0014), "1.4 ms");
  assert.equal(format.milliseconds(null), "–");
  assert.equal(format.counted(1, "subflow"), "1 subflow");
  assert.equal(format.counted(10_000, "subflow"), "10,000 subflows");
});

test("a time of day means the last time at which clocks showed it", () => {
  const noon = new Date(2026, 10, 22, 12, 0, 0).getTime() / 1000;
  assert.equal(format.lastTime("10:15", noon), noon - 6300);
  assert.equal(format.lastTime("10:15:30", noon), noon - 6270);
  assert.equal(format.lastTime("23:00", noon), noon - 13 * 3600);
  assert.equal(format.lastTime("12:00", noon), noon);
  for (const wrong of ["", "noon", "10", "10:5", "10:15:3"]) assert.equal(format.lastTime(wrong, noon), null);
  assert.equal(format.clock(noon), "12:00:00");
  assert.equal(format.moment(noon - 6300, noon), "10:15:00");
  assert.equal(format.moment(noon - 86400, noon), "2026-11-21 12:00");
});

test("a time of day is right also around a change of the clocks", () => {
  process.env.TZ = "Europe/Athens";
  // Clocks are set back from 04:00 to 03:00. The times are one shown twice, one shown only once so far, and an earlier one.
  const autumn = Date.UTC(2026, 9, 25, 1, 45) / 1000;
  assert.equal(format.clock(autumn), "03:45:00");
  assert.equal(format.lastTime("03:30", autumn), autumn - 15 * 60);
  assert.equal(format.lastTime("03:50", autumn), autumn - 55 * 60);
  assert.equal(format.lastTime("02:30", autumn), autumn - 135 * 60);
  // Clocks are set forward from 03:00 to 04:00. A skipped time means that time on the day before.
  const spring = Date.UTC(2026, 2, 29, 1, 10) / 1000;
  assert.equal(format.clock(spring), "04:10:00");
  assert.equal(format.lastTime("03:30", spring), Date.UTC(2026, 2, 28, 1, 30) / 1000);
  assert.equal(format.lastTime("04:05", spring), spring - 5 * 60);
  process.env.TZ = "Australia/Lord_Howe";
  const lordHowe = Date.UTC(2026, 3, 4, 15, 20) / 1000;
  assert.equal(format.clock(lordHowe), "01:50:00");
  assert.equal(format.lastTime("01:40", lordHowe), lordHowe - 10 * 60);
  assert.equal(format.lastTime("25:00", lordHowe), null);
});

test("the end of a rule's match is shown in the policy's time zone", () => {
  process.env.TZ = "America/New_York";
  const noon = Date.UTC(2026, 10, 20, 12) / 1000;
  assert.equal(format.timeInZone(noon + 3600, noon, "Europe/Athens"), "15:00 (Europe/Athens)");
  assert.equal(format.timeInZone(noon + 11 * 3600, noon, "Europe/Athens"), "2026-11-21 01:00 (Europe/Athens)");
  assert.equal(format.timeInZone(noon + 11 * 3600, noon, "UTC"), "23:00 (UTC)");
});
