// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import test from "node:test";
import {get, Poller} from "../../../console/mptcp_console/static/js/api.mjs";

/** Let awaited promises continue. */
async function settle() {
  for (let turn = 0; turn < 10; turn += 1) await Promise.resolve();
}

/** Let *seconds* pass, in steps of a tenth. */
async function pass(context, seconds) {
  for (let tenth = 0; tenth < 10 * seconds; tenth += 1) {
    context.mock.timers.tick(100);
    await settle();
  }
}

/** The part of a document that shows whether the page is visible. */
class Page extends EventTarget {
  hidden = false;

  /** @param {boolean} isVisible */
  show(isVisible) {
    this.hidden = !isVisible;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

function countRuns(context, {isActive = () => true, seconds = 3} = {}) {
  context.mock.timers.enable({apis: ["setTimeout", "Date"]});
  const runs = [], page = new Page();
  const poller = new Poller(async () => {
    runs.push(Date.now());
  }, seconds, isActive, page);
  return {runs, page, poller};
}

test("an event causes a run at once, and the usual pause starts again", async context => {
  const {runs, poller} = countRuns(context);
  await poller.runNow();
  await pass(context, 1.5);
  poller.runSoon();
  await pass(context, 0.1);
  assert.deepEqual(runs, [0, 1600]);
  await pass(context, 3);
  assert.deepEqual(runs, [0, 1600, 4600]);
});

test("many events cause at most one run a second, and one after the last event", async context => {
  const {runs, poller} = countRuns(context);
  await poller.runNow();
  for (let number = 0; number < 1000; number += 1) {
    poller.runSoon();
    if (number % 10 === 9) await pass(context, 0.1);
  }
  assert.equal(runs.length, 11);
  for (let index = 1; index < runs.length; index += 1) assert.ok(runs[index] - runs[index - 1] >= 1000);
  const before = runs.length;
  poller.runSoon();
  await pass(context, 1);
  assert.equal(runs.length, before + 1);
});

test("no run begins while another one lasts", async context => {
  context.mock.timers.enable({apis: ["setTimeout", "Date"]});
  const starts = [];
  let release = () => {};
  const poller = new Poller(() => {
    starts.push(Date.now());
    return new Promise(resolve => { release = resolve; });
  }, 3, () => true, new Page());
  poller.runNow();
  poller.runSoon();
  await pass(context, 5);
  assert.equal(starts.length, 1);
  release();
  await settle();
  assert.deepEqual(starts, [0, 5000]);
});

test("an inactive poller begins no run", async context => {
  let isVisible = true;
  const {runs, poller} = countRuns(context, {isActive: () => isVisible});
  await poller.runNow();
  poller.runSoon();
  isVisible = false;
  await pass(context, 5);
  poller.runSoon();
  await pass(context, 5);
  assert.deepEqual(runs, [0]);
});

test("a hidden page runs nothing, and runs at once when it is shown", async context => {
  const {runs, page, poller} = countRuns(context);
  await poller.runNow();
  page.show(false);
  await pass(context, 60);
  poller.runSoon();
  await pass(context, 60);
  assert.deepEqual(runs, [0]);
  page.show(true);
  await settle();
  assert.deepEqual(runs, [0, 120_000]);
  await pass(context, 3);
  assert.deepEqual(runs, [0, 120_000, 123_000]);
});

test("hiding the page for a moment causes no additional run", async context => {
  const {runs, page, poller} = countRuns(context);
  await poller.runNow();
  for (let time = 0; time < 20; time += 1) {
    page.show(false);
    page.show(true);
    await pass(context, 0.1);
  }
  assert.deepEqual(runs, [0]);
  await pass(context, 1);
  assert.deepEqual(runs, [0, 3000]);
});

test("no run begins for another view when the window is shown again", async context => {
  let isShown = true;
  const {runs, page, poller} = countRuns(context, {isActive: () => isShown});
  await poller.runNow();
  page.show(false);
  await pass(context, 10);
  isShown = false;
  page.show(true);
  await pass(context, 10);
  assert.deepEqual(runs, [0]);
});

/** Records the URLs that are requested from now on. @param {import("node:test").TestContext} context @returns {string[]} */
function recordUrls(context) {
  const urls = [];
  context.mock.method(globalThis, "fetch", async url => {
    urls.push(url);
    return new Response("{}");
  });
  return urls;
}

test("parameters are sent also by browsers that lack URLSearchParams.size", async context => {
  // Defect: Safari before 17 and Firefox before 112 lack this property, so the page dropped all parameters.
  const sizeProperty = Object.getOwnPropertyDescriptor(URLSearchParams.prototype, "size");
  delete URLSearchParams.prototype.size;
  context.after(() => sizeProperty && Object.defineProperty(URLSearchParams.prototype, "size", sizeProperty));
  const urls = recordUrls(context);
  await get("events", {token: "a b&c", client: "", limit: 300});
  await get("events", {client: ""});
  await get("policy");
  assert.deepEqual(urls, ["/api/events?token=a+b%26c&limit=300", "/api/events", "/api/policy"]);
});
