import assert from "node:assert/strict";
import test from "node:test";
import {viewOf} from "../../../console/mptcp_console/static/js/view.mjs";

test("an address means a part of the page", () => {
  for (const name of ["connections", "events", "policy", "what-if"]) assert.deepEqual(viewOf(`#${name}`), {view: name, token: ""});
  assert.deepEqual(viewOf("#connection/4f037d87"), {view: "connection", token: "4f037d87"});
});

test("one that means nothing is the live page", () => {
  for (const hash of ["", "#", "#live", "#nothing", "#connection", "#connection/xyz", "#connection/4f037d877", "#connection/4f037d8/7"]) {
    assert.deepEqual(viewOf(hash), {view: "live", token: ""}, hash);
  }
});
