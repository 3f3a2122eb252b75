/**
 * Wires the page: which part is shown, what the stream brings, light and dark.
 */
import {byId, keyed, make, setText} from "./dom.mjs";
import {age} from "./format.mjs";
import {ConnectionPage} from "./connection.mjs";
import {ConnectionsPage} from "./connections.mjs";
import {EventsPage} from "./happenings.mjs";
import {Feed} from "./feed.mjs";
import {OverviewPage} from "./overview.mjs";
import {PolicyPage, WhatIfPage} from "./policy.mjs";
import {heard, now} from "./server_time.mjs";
import {viewOf} from "./view.mjs";
import {announcement, changesCaps, faultsText, refusedText, stateText, troubleText} from "./words.mjs";

const QUIET = 5_000;
const TITLES = {
  live: "Live", connections: "Connections", connection: "Connection", events: "Events", policy: "Policy",
  "what-if": "What if",
};

const overview = new OverviewPage();
const connections = new ConnectionsPage();
const connection = new ConnectionPage();
const events = new EventsPage();
const policy = new PolicyPage();
new WhatIfPage();

/** @type {import("./types.mjs").Throttler|null} */
let throttler = null;
/** @type {import("./types.mjs").Overview|null} */
let latest = null;
/** @type {import("./words.mjs").Lost} */
let lost = null;
let hasRested = false;
let announced = 0;
let shown = "";

/** @param {boolean} byPerson whether somebody went there, so that the focus goes, too */
function navigate(byPerson) {
  const {view, token, span} = viewOf(location.hash);
  for (const section of document.querySelectorAll("main > section")) {
    /** @type {HTMLElement} */ (section).hidden = section.id !== `view-${view}`;
  }
  for (const link of document.querySelectorAll("nav.views a")) {
    const is = /** @type {HTMLElement} */ (link).dataset.view === (view === "connection" ? "connections" : view);
    if (is) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]}${token ? ` ${token}` : ""} – MPTCP console`;
  overview.show(view === "live");
  connections.show(view === "connections");
  connection.show(view === "connection" ? token : "");
  policy.show(view === "policy");
  if (view === "events" && (shown !== view || span)) events.show(span);
  if (byPerson && shown !== view) {
    byId(`title-${view}`).focus();
    scrollTo(0, 0);
  }
  shown = view;
}

function drawState() {
  const state = byId("state");
  const faults = lost === null && throttler?.state === "up" ? latest?.faults ?? [] : [];
  state.dataset.state = lost !== null ? "lost" : faults.length > 0 ? "faulty" : throttler?.state ?? "waiting";
  setText(byId("state-text"), stateText(throttler, lost, faults.length));
  const text = troubleText(throttler, lost);
  byId("trouble").hidden = text === null;
  overview.age(text !== null);
  setText(byId("trouble-text"), text ?? "");
  // Beside the alert, not in it: it would be read out each second.
  const since = lost?.since ?? throttler?.since ?? 0;
  setText(byId("trouble-age"), text === null ? "" : `(${age(now() - since)})`);
  byId("faults").hidden = faults.length === 0;
  setText(byId("faults"), faultsText(faults));
}

/** @param {import("./types.mjs").Moment} moment */
function take(moment) {
  const wasGone = lost !== null || hasRested || throttler === null;
  heard(moment.time);
  throttler = moment.throttler;
  lost = null;
  hasRested = false;
  if (wasGone) {
    overview.load();
    if (shown === "events") events.load();
  }
  overview.push(moment);
  if (changesCaps(latest, moment)) for (const page of [connections, connection, policy]) page.changed();
  latest = moment.now ?? latest;
  drawState();
  if (moment.more_events && shown === "events") events.load();
  else events.push(moment.events);
  byId("logout").hidden = !moment.login;
  if (moment.now !== null) {
    choices(moment.now);
    byId("dry-run").hidden = !moment.now.dry_run;
    connections.dryRun = moment.now.dry_run;
    const refused = moment.now.refused_reload;
    const note = byId("note");
    note.hidden = refused === null;
    setText(note, refused === null ? "" : refusedText(refused, now()));
  }
  const words = announcement(moment.events);
  if (words !== null && Date.now() - announced > QUIET) {
    announced = Date.now();
    setText(byId("announcer"), words);
  }
}

/** @param {import("./types.mjs").Overview} newest */
function choices(newest) {
  const paths = [...new Set(newest.paths.map(each => each.path).filter(path => path !== null))];
  const rules = [...new Set([...newest.rule_names, ...newest.rules.map(each => each.rule)])];
  for (const [id, names] of /** @type {[string, string[]][]} */ ([
    ["filter-path", paths], ["filter-rule", rules], ["events-rule", rules],
  ])) {
    const select = byId(id);
    const kept = select.value !== "" && !names.includes(select.value) ? [select.value] : [];
    keyed(select, [...names, ...kept].sort(), name => name, name => make("option", {value: name}, name), () => {});
  }
}

/** @param {"gone"|"full"} why */
function lose(why) {
  lost = {since: lost?.since ?? now(), why};
  drawState();
}

function rest() {
  lost = null;
  hasRested = true;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : chosen === "dark";
}

function drawTheme() {
  setText(byId("theme"), isDark() ? "Light" : "Dark");
  overview.recolour();
}

byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // It holds for this page.
  }
  drawTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);
byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", () => navigate(true));
setInterval(drawState, 1000);

drawTheme();
navigate(false);
new Feed(take, lose, rest).start();
