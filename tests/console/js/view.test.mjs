import assert from "node:assert/strict";
import test from "node:test";
import {eventsBetween, viewOf} from "../../../console/mptcp_console/static/js/view.mjs";

test("an address means a part of the page", () => {
  for (const name of ["connections", "events", "policy", "what-if"]) assert.deepEqual(viewOf(`#${name}`), {view: name, token: "", span: ""});
  assert.deepEqual(viewOf("#connection/4f037d87"), {view: "connection", token: "4f037d87", span: ""});
});

test("one that means nothing is the live page", () => {
  for (const hash of ["", "#", "#live", "#nothing", "#connection", "#connection/xyz", "#connection/4f037d877", "#connection/4f037d8/7"]) {
    assert.deepEqual(viewOf(hash), {view: "live", token: "", span: ""}, hash);
  }
});

test("events of a time have an address", () => {
  assert.equal(eventsBetween(1_795_000_000.6, 1_795_000_015.2), "#events/1795000000-1795000016");
  assert.deepEqual(viewOf("#events/1795000000-1795000016"), {view: "events", token: "", span: "1795000000-1795000016"});
  for (const hash of ["#events/1795000000", "#events/x-y", "#events/1-2-3", "#policy/1-2"]) assert.equal(viewOf(hash).span, "", hash);
});
