// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Connects the page's parts: the shown view, the stream, and the colour scheme.
 */
import {byId, updateChildren, make, setText} from "./dom.mjs";
import {age} from "./format.mjs";
import {get} from "./api.mjs";
import {ClientsPage} from "./clients.mjs";
import {ConnectionPage} from "./connection.mjs";
import {ConnectionsPage} from "./connections.mjs";
import {EventsPage} from "./event_lists.mjs";
import {Feed} from "./feed.mjs";
import {setNames} from "./names.mjs";
import {OverviewPage} from "./overview.mjs";
import {PolicyPage, WhatIfPage} from "./policy.mjs";
import {HealthPage} from "./proxy_health.mjs";
import {now, synchronize} from "./server_time.mjs";
import {viewOf} from "./view.mjs";
import {announcement, changesCaps, faultsText, refusedText, stateText, troubleText} from "./sentences.mjs";

const MIN_ANNOUNCEMENT_INTERVAL_MS = 5_000;
const TITLES = {
  live: "Live", clients: "Clients", connections: "Connections", connection: "Connection", events: "Events", policy: "Policy",
  "what-if": "What if", health: "Health",
};

const overview = new OverviewPage();
const clients = new ClientsPage();
const connections = new ConnectionsPage();
const connection = new ConnectionPage();
const events = new EventsPage();
const policy = new PolicyPage();
const health = new HealthPage();
new WhatIfPage();

/** @type {import("./types.mjs").Throttler|null} */
let throttler = null;
/** @type {import("./types.mjs").Overview|null} */
let latest = null;
/** @type {import("./sentences.mjs").Lost} */
let lost = null;
let wasPaused = false;
let lastAnnouncement = 0;
let shownView = "";
/** The version of the page's address names. */
let namesVersion = -1;

/** @param {boolean} byUser whether the user navigated, so that the focus follows */
function navigate(byUser) {
  const {view, token, span, client} = viewOf(location.hash);
  for (const section of document.querySelectorAll("main > section")) {
    /** @type {HTMLElement} */ (section).hidden = section.id !== `view-${view}`;
  }
  for (const link of document.querySelectorAll("nav.views a")) {
    const isShown = /** @type {HTMLElement} */ (link).dataset.view === (view === "connection" ? "connections" : view);
    if (isShown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[view]}${token ? ` ${token}` : ""} – MPTCP console`;
  overview.show(view === "live");
  clients.show(view === "clients");
  health.show(view === "health");
  connections.show(view === "connections", client);
  connection.show(view === "connection" ? token : "");
  policy.show(view === "policy");
  if (view === "events" && (shownView !== view || span)) events.show(span);
  if (byUser && shownView !== view) {
    byId(`title-${view}`).focus();
    scrollTo(0, 0);
  }
  shownView = view;
}

function drawState() {
  const state = byId("state");
  const faults = lost === null && throttler?.state === "up" ? latest?.faults ?? [] : [];
  state.dataset.state = lost !== null ? "lost" : faults.length > 0 ? "faulty" : throttler?.state ?? "waiting";
  setText(byId("state-text"), stateText(throttler, lost, faults.length));
  const text = troubleText(throttler, lost);
  byId("trouble").hidden = text === null;
  overview.setStale(text !== null);
  setText(byId("trouble-text"), text ?? "");
  // The age is not in the alert, because a screen reader would read it out each second.
  const since = lost?.since ?? throttler?.since ?? 0;
  setText(byId("trouble-age"), text === null ? "" : `(${age(now() - since)})`);
  byId("faults").hidden = faults.length === 0;
  setText(byId("faults"), faultsText(faults));
  health.setThrottlerState(stateText(throttler, lost, faults.length));
}

/** Load facts that rarely change. */
async function loadAbout() {
  try {
    const about = await get("about");
    namesVersion = about.names_version;
    setNames(about.names);
    for (const page of [clients, connections, connection]) page.refresh();
    setText(byId("about-version"), `mptcp-console ${about.version}`);
    byId("docs").hidden = !about.docs;
    const grafana = byId("grafana");
    grafana.hidden = about.grafana === null;
    if (about.grafana !== null) grafana.href = about.grafana;
  } catch {
    // The next snapshot tries again.
  }
}

/** @param {import("./types.mjs").Snapshot} snapshot */
function showSnapshot(snapshot) {
  const hasGap = lost !== null || wasPaused || throttler === null;
  synchronize(snapshot.time);
  throttler = snapshot.throttler;
  lost = null;
  wasPaused = false;
  if (hasGap) {
    overview.load();
    if (shownView === "events") events.load();
  }
  if (snapshot.names !== namesVersion) loadAbout();
  overview.push(snapshot);
  if (changesCaps(latest, snapshot)) for (const page of [connections, connection, policy]) page.refresh();
  latest = snapshot.now ?? latest;
  drawState();
  if (snapshot.more_events && shownView === "events") events.load();
  else events.push(snapshot.events);
  byId("logout").hidden = !snapshot.login;
  const newest = snapshot.now ?? snapshot.last;
  if (newest !== null) fillFilters(newest);
  if (snapshot.now !== null) {
    byId("dry-run").hidden = !snapshot.now.dry_run;
    connections.dryRun = snapshot.now.dry_run;
    const refused = snapshot.now.refused_reload;
    const note = byId("note");
    note.hidden = refused === null;
    setText(note, refused === null ? "" : refusedText(refused, now()));
  }
  const text = announcement(snapshot.events);
  if (text !== null && Date.now() - lastAnnouncement > MIN_ANNOUNCEMENT_INTERVAL_MS) {
    lastAnnouncement = Date.now();
    setText(byId("announcer"), text);
  }
}

/** @param {import("./types.mjs").Overview} newest */
function fillFilters(newest) {
  const paths = [...new Set(newest.paths.map(each => each.path).filter(path => path !== null))];
  const rules = [...new Set([...newest.rule_names, ...newest.rules.map(each => each.rule)])];
  for (const [id, names] of /** @type {[string, string[]][]} */ ([
    ["filter-path", paths], ["filter-rule", rules], ["events-rule", rules],
  ])) {
    const select = byId(id);
    const selected = select.value !== "" && !names.includes(select.value) ? [select.value] : [];
    updateChildren(select, [...names, ...selected].sort(), name => name, name => make("option", {value: name}, name), () => {});
  }
}

/** @param {"broken"|"full"} why */
function streamLost(why) {
  lost = {since: lost?.since ?? now(), why};
  drawState();
}

function streamPaused() {
  lost = null;
  wasPaused = true;
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
    // Without storage, the theme applies only to this page.
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
new Feed(showSnapshot, streamLost, streamPaused).start();
