import assert from "node:assert/strict";
import test from "node:test";
import {hour} from "../../../console/mptcp_console/static/js/connection.mjs";

test("until when a rule matches is told by the policy's clock, whatever the browser's", () => {
  process.env.TZ = "America/New_York";
  const noon = Date.UTC(2026, 10, 20, 12) / 1000;
  assert.equal(hour(noon + 3600, noon, "Europe/Athens"), "15:00 (Europe/Athens)");
  assert.equal(hour(noon + 11 * 3600, noon, "Europe/Athens"), "2026-11-21 01:00 (Europe/Athens)");
  assert.equal(hour(noon + 11 * 3600, noon, "UTC"), "23:00 (UTC)");
});
