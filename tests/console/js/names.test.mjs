// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import {addressNamed, withNames, setNames} from "../../../console/mptcp_console/static/js/names.mjs";

test("each address is followed by its name", () => {
  assert.equal(withNames("10.77.1.2"), "10.77.1.2");
  setNames({"10.77.1.2": "phone", "fd77::2": "tablet"});
  assert.equal(withNames("10.77.1.2"), "10.77.1.2 (phone)");
  assert.equal(withNames("10.77.1.2:40000 on path wifi: capped"), "10.77.1.2:40000 (phone) on path wifi: capped");
  assert.equal(withNames("subflow 10.77.1.2:40000: joined"), "subflow 10.77.1.2:40000 (phone): joined");
  assert.equal(withNames("from [fd77::2]:40000, fd77::2."), "from [fd77::2]:40000 (tablet), fd77::2 (tablet).");
  // Neither another address nor a network is named.
  for (const text of ["10.77.1.20", "110.77.1.2", "10.77.1.2/32", "at 10:15:03"]) assert.equal(withNames(text), text);
});

test("a typed name is translated to its address", () => {
  setNames({"10.77.1.2": "Phone"});
  assert.equal(addressNamed(" phone "), "10.77.1.2");
  assert.equal(addressNamed("phon"), "");
  assert.equal(addressNamed(""), "");
});
