// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import {eventsAddress, viewOf} from "../../../console/mptcp_console/static/js/view.mjs";

test("an address selects a view", () => {
  for (const name of ["clients", "connections", "events", "policy", "what-if", "health"]) {
    assert.deepEqual(viewOf(`#${name}`), {view: name, token: "", span: "", client: ""});
  }
  // A tunnel's token has nine digits.
  for (const token of ["4f037d87", "14f037d87"]) {
    assert.deepEqual(viewOf(`#connection/${token}`), {view: "connection", token, span: "", client: ""});
  }
  for (const client of ["10.77.1.2", "fd77::2"]) assert.equal(viewOf(`#connections/${client}`).client, client);
  assert.equal(viewOf("#connections/<b>").client, "");
});

test("an invalid address selects the live page", () => {
  for (const hash of ["", "#", "#live", "#nothing", "#connection", "#connection/xyz", "#connection/4f037d8777", "#connection/4f037d8/7"]) {
    assert.deepEqual(viewOf(hash), {view: "live", token: "", span: "", client: ""}, hash);
  }
});

test("a span of events has an address", () => {
  assert.equal(eventsAddress(1_795_000_000.6, 1_795_000_015.2), "#events/1795000000-1795000016");
  assert.deepEqual(viewOf("#events/1795000000-1795000016"), {view: "events", token: "", span: "1795000000-1795000016", client: ""});
  for (const hash of ["#events/1795000000", "#events/x-y", "#events/1-2-3", "#policy/1-2"]) assert.equal(viewOf(hash).span, "", hash);
});
