// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import {Series, axisMaximum, linesToDraw, pathName} from "../../../console/mptcp_console/static/js/series.mjs";

const START = 1_795_000_000;

function overview(time, {ethernet = 5e6, wifi = 30e6, capped = 2, ceil = 5e6, share = "path", landing = 0, ...more} = {}) {
  const rule = {policy: "policy", rule: "spare", path: "ethernet", direction: "down", share, capped, landing, rate: ceil / 2,
    lowest_ceil: ceil, ceil, total_ceil: ceil, classes: 1, shared_classes: 0, bytes: 0, ...more};
  return {
    time, connections: 1, subflows: {active: 2}, clients: 1, capped, landing: 0, relaxed: 0,
    paths: [{path: "wifi", direction: "down", rate: wifi}, {path: "ethernet", direction: "down", rate: ethernet}],
    rules: capped > 0 ? [rule] : [],
  };
}

test("snapshots are appended, and the oldest are dropped", () => {
  const series = new Series(5, 1);
  for (let second = 0; second < 9; second += 1) series.push(overview(START + second + 0.4, {wifi: second}));
  assert.deepEqual(series.times, [4, 5, 6, 7, 8].map(each => START + each));
  assert.deepEqual(series.lines("down").map(each => [each.path, each.values]),
    [["ethernet", [5e6, 5e6, 5e6, 5e6, 5e6]], ["wifi", [4, 5, 6, 7, 8]]]);
  assert.deepEqual(series.lines("up"), []);
});

test("the values of a snapshot are valid since the previous one, except after a long pause", () => {
  const series = new Series(60, 1);
  series.push(overview(START));
  series.push(overview(START + 3, {ethernet: 3e6}));
  assert.deepEqual(series.lines("down")[0].values, [5e6, 3e6, 3e6, 3e6]);
  assert.deepEqual(series.caps("down")[0].values, [5e6, 5e6, 5e6, 5e6]);
  series.push(overview(START + 23));
  assert.deepEqual(series.lines("down")[0].values.slice(3), [3e6, ...new Array(19).fill(null), 5e6]);
  series.push(overview(START + 5000));
  assert.equal(series.length, 60);
  assert.deepEqual(series.lines("down")[0].values.filter(each => each !== null), [5e6]);
});

test("a second snapshot within one second replaces the first", () => {
  const series = new Series(60, 1);
  series.push(overview(START + 0.1, {wifi: 1}));
  series.push(overview(START + 0.9, {wifi: 2}));
  assert.deepEqual(series.lines("down")[1].values, [2]);
});

test("a clock that was set back empties the series", () => {
  const series = new Series(60, 1);
  series.push(overview(START));
  series.push(overview(START - 100));
  assert.deepEqual(series.times, [START - 100]);
  assert.deepEqual(series.lines("down")[0].values, [5e6]);
});

test("a new path has no earlier values, and a path without values is removed", () => {
  const series = new Series(3, 1);
  series.push({...overview(START), paths: [{path: "wifi", direction: "down", rate: 1}]});
  series.push(overview(START + 1));
  assert.deepEqual(series.lines("down").map(each => each.values), [[null, 5e6], [1, 30e6]]);
  for (let second = 2; second < 6; second += 1) {
    series.push({...overview(START + second), paths: [{path: "wifi", direction: "down", rate: 1}]});
  }
  assert.deepEqual(series.lines("down").map(each => each.path), ["wifi"]);
});

test("a cap is in the graph from its gradual start until it caps no subflow", () => {
  const series = new Series(10, 1);
  series.push(overview(START, {capped: 0}));
  series.push(overview(START + 1, {capped: 1, landing: 1}));
  series.push(overview(START + 2));
  series.push(overview(START + 3, {capped: 0}));
  assert.deepEqual(series.caps("down").map(each => [each.rule, each.values, each.latest]),
    [["spare", [null, 5e6, 5e6, null], null]]);
  assert.deepEqual([1, 2].map(each => series.stateAt(each, "down")[0].caps[0].capped), [1, 2]);
  assert.deepEqual(series.caps("up"), []);
});

test("a cap is drawn at the total rate of its classes", () => {
  const series = new Series(10, 1);
  series.push(overview(START, {share: "client", capped: 10}));
  series.push(overview(START + 1, {share: "client", capped: 10, total_ceil: 9e6, lowest_ceil: 4e6, classes: 2, shared_classes: 1}));
  assert.deepEqual(series.caps("down")[0].values, [5e6, 9e6]);
  assert.deepEqual(series.caps("down")[0].latest,
    {rule: "spare", share: "client", cap: 5e6, lowest: 4e6, guaranteed: 2.5e6, total: 9e6, shared: 1, capped: 10});
});

test("a cap is drawn at its ceil if the throttler does not count classes", () => {
  const series = new Series(10, 1);
  series.push(overview(START, {lowest_ceil: undefined, total_ceil: undefined, classes: undefined, shared_classes: undefined}));
  assert.deepEqual(series.caps("down")[0].values, [5e6]);
});

test("snapshots continue the history without a gap", () => {
  const series = new Series(10, 1);
  series.load({
    first: START, step: 1, length: 3, refused: 0,
    paths: [{path: "wifi", direction: "down", rate: [1, null, 3]}, {path: "ethernet", direction: "down", rate: [1, 2, 3]}],
    rules: [
      {policy: "policy", rule: "spare", path: "ethernet", direction: "down", share: "path", cap: [null, 5e6, 5e6], guaranteed: [null, null, 2.5e6],
        total: [null, 15e6, null], shared: [null, 3, null], capped: [null, 2, 2]},
    ],
  });
  series.push(overview(START + 3));
  assert.deepEqual(series.times, [0, 1, 2, 3].map(each => START + each));
  assert.deepEqual(series.lines("down").map(each => each.values), [[1, 2, 3, 5e6], [1, null, 3, 30e6]]);
  assert.deepEqual(series.caps("down").map(each => each.values), [[null, 15e6, 5e6, 5e6]]);
  assert.deepEqual([1, 2, 3].map(each => series.stateAt(each, "down")[0].caps[0].shared), [3, 0, 0]);
  assert.deepEqual([1, 2, 3].map(each => series.stateAt(each, "down")[0].caps[0].guaranteed), [5e6, 2.5e6, 2.5e6]);
});

test("the state at a time has each path's rate and caps", () => {
  const series = new Series(10, 1);
  series.push(overview(START, {capped: 0}));
  series.push(overview(START + 1));
  assert.equal(series.indexOf(START + 0.6), 0);
  assert.equal(series.indexOf(START + 1.6), 1);
  assert.equal(series.indexOf(START - 50), 0);
  assert.equal(series.indexOf(START + 50), 1);
  assert.equal(new Series(10, 1).indexOf(START), -1);
  assert.deepEqual(series.stateAt(0, "down").map(each => each.caps), [[], []]);
  assert.deepEqual(series.stateAt(1, "down"), [
    {path: "ethernet", rate: 5e6, caps: [{rule: "spare", share: "path", cap: 5e6, lowest: 5e6, guaranteed: 2.5e6, total: 5e6, shared: 0, capped: 2}]},
    {path: "wifi", rate: 30e6, caps: []},
  ]);
});

test("a time belongs to the ten seconds that contain it", () => {
  const series = new Series(100, 10);
  for (let second = 0; second < 40; second += 1) series.push(overview(START + second, {wifi: Math.floor(second / 10)}));
  assert.deepEqual(series.times, [0, 10, 20, 30].map(each => START + each));
  for (let second = 0; second < 40; second += 1) {
    assert.equal(series.stateAt(series.indexOf(START + second), "down")[1].rate, Math.floor(second / 10), `second ${second}`);
  }
});

test("dropped times are not covered, and the latest value covers a limited time", () => {
  const series = new Series(10, 1);
  assert.equal(series.covers(START), false);
  for (let second = 0; second < 20; second += 1) series.push(overview(START + second));
  assert.deepEqual([9, 10, 19, 22, 60].map(each => series.covers(START + each)), [false, true, true, true, false]);
});

test("the current state comes from the stream, and is not a mean of ten seconds", () => {
  const series = new Series(3600, 10);
  series.load({first: START, step: 10, length: 1, since: START, refused: 0,
    paths: [{path: "wifi", direction: "down", rate: [1]}, {path: "lte", direction: "down", rate: [9]}], rules: []});
  const [ethernet, lte, wifi, ...more] = series.currentState(overview(START + 12, {wifi: 7e6}), "down");
  assert.deepEqual(more, []);
  assert.deepEqual([ethernet.path, ethernet.rate, ethernet.caps.map(each => each.cap)], ["ethernet", 5e6, [5e6]]);
  assert.deepEqual([lte.path, lte.rate], ["lte", null]);
  assert.deepEqual([wifi.path, wifi.rate, wifi.caps], ["wifi", 7e6, []]);
  assert.deepEqual(series.currentState(overview(START + 12), "up"), []);
});

test("caps that are too far above the rates to be drawn are counted", () => {
  const series = new Series(10, 1);
  series.push(overview(START, {ethernet: 5e6, wifi: 5e6, ceil: 1e9}));
  assert.deepEqual([linesToDraw(series, "down").highCaps, linesToDraw(series, "down").caps.length], [1, 1]);
  series.push(overview(START + 1, {ethernet: 3e8, wifi: 5e6, ceil: 1e9}));
  assert.equal(linesToDraw(series, "down").highCaps, 0);
});

test("paths and caps that are not drawn are counted, and current caps come first", () => {
  const snapshotWith = (count, rules) => ({
    ...overview(START + count), rules: rules.map(rule => ({...overview(START).rules[0], rule})),
    paths: Array.from({length: 18}, (_, number) => ({path: `p${String(number).padStart(2, "0")}`, direction: "down", rate: 1})),
  });
  const series = new Series(10, 1);
  assert.deepEqual(linesToDraw(series, "down"), {lines: [], caps: [], top: 1e5 * 1.08, highCaps: 0, morePaths: 0, moreCaps: 0});
  series.push(snapshotWith(0, Array.from({length: 15}, (_, number) => `old-${String(number).padStart(2, "0")}`)));
  series.push(snapshotWith(1, ["current"]));
  const found = linesToDraw(series, "down");
  assert.deepEqual([found.lines.length, found.morePaths, found.caps.length, found.moreCaps], [16, 2, 12, 4]);
  assert.deepEqual(found.caps.slice(0, 2).map(each => each.rule), ["current", "old-00"]);
});

test("the axis includes caps near the rates, but none far above them", () => {
  const line = {key: "a", path: "a", values: [1e6, null, 2e6]};
  const cap = {key: "c", rule: "r", path: "a", latest: null, values: [5e6]};
  assert.equal(axisMaximum([line], []), 2e6 * 1.08);
  assert.equal(axisMaximum([line], [cap]), 5e6 * 1.08);
  assert.equal(axisMaximum([line], [{...cap, values: [1e9]}]), 2e6 * 1.08);
  assert.equal(axisMaximum([], []), 1e5 * 1.08);
});

test("traffic without a path has a name", () => {
  assert.equal(pathName(null), "no path");
  assert.equal(pathName("wifi"), "wifi");
});
