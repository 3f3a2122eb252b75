// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The console's answers, as the modules use them. Rates in bits/s, times in seconds since the epoch.
 *
 * @typedef {{state: "up"|"down"|"crashed"|"silent"|"refused"|"odd", since: number, text: string}} Throttler
 * @typedef {{path: string|null, direction: "down"|"up", rate: number}} PathRate
 * @typedef {{begin: number, since: number, paths: {path: string|null, down: number, up: number}[]}} Volume
 * @typedef {{policy: string, rule: string, path: string|null, direction: string, share: string, capped: number,
 *   landing: number, rate: number|null, lowest_ceil?: number|null, ceil: number|null, total_ceil?: number,
 *   classes?: number, shared_classes?: number, bytes: number}} Rule
 * @typedef {{time: number, version: string, pid: number, connections: number, subflows: Record<string, number>,
 *   clients: number, capped: number, landing: number, relaxed: number, paths: PathRate[], rules: Rule[],
 *   more_rules: number, rule_names: string[], dry_run: boolean, faults: string[], time_zone?: string|null,
 *   budgets: import("./budgets.mjs").Budget[], budget_totals: import("./budgets.mjs").Budget[],
 *   budgets_used_up: number, volumes: {day: Volume, month: Volume}, refused_reload: {time: number, errors: string[]}|null}} Overview
 * @typedef {{serial: number, time: number, kind?: string, token?: string, client?: string, remote?: string,
 *   path?: string, rule?: string, direction?: string, text: string}} LoggedEvent
 * @typedef {{tick: number, time: number, login: boolean, names: number, throttler: Throttler, now: Overview|null, last: Overview|null, events: LoggedEvent[], more_events: boolean}} Snapshot
 *
 * @typedef {{path: string|null, direction: string, rate: (number|null)[]}} PathColumn
 * @typedef {{policy: string, rule: string, path: string|null, direction: string, share: string,
 *   cap: (number|null)[], lowest?: (number|null)[], guaranteed?: (number|null)[], total?: (number|null)[],
 *   shared?: (number|null)[], capped?: (number|null)[]}} RuleColumn
 * @typedef {{first: number, step: number, length: number, paths: PathColumn[], rules: RuleColumn[],
 *   time: number, since: number|null, refused: number}} Columns
 *
 * @typedef {{rule: string, kind: "throttle"|"budget"|"steer", matched: boolean, failed: string|null, until: number|null}} Tried
 * @typedef {{stage: string, what: string, since: number|null}} Stage
 * @typedef {{remote: string, local: string, path: string|null, interface: string|null, direction: string,
 *   verdict: string, reason: string, rate: number|null, ceil: number|null, rule: string|null, since: number,
 *   tried: Tried[], stages: Stage[], cap_state: string}} ExplainedSubflow
 * @typedef {{token: string, client: string, since: number, tunnel?: string, subflows: ExplainedSubflow[]}} Explained
 *
 * @typedef {{local: string, remote: string, path: string|null, interface: string|null, initial: boolean,
 *   backup: boolean, since: number, rule: string|null, rate: number|null, ceil: number|null, classid: string|null,
 *   landing: boolean, reason: string, upload: {rate: number|null, ceil: number|null, rule: string|null,
 *   landing?: boolean, reason: string}|null,
 *   bytes_sent: number|null, bytes_received: number|null, rtt: number|null, retransmits: number|null,
 *   segments_out: number|null, lost: number|null, rate_sent: number|null, rate_received: number|null,
 *   share: number|null}} Subflow
 * @typedef {{token: string, client: string, since: number, relaxed: string|null, bytes_sent: number|null,
 *   bytes_received: number|null, tunnel?: string, subflows: Subflow[]}} Connection
 */
export {};
