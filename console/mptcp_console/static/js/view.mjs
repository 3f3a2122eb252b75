// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Parses the part of the page's address that selects a view. Pure.
 */

/** @typedef {"live"|"clients"|"connections"|"connection"|"events"|"policy"|"what-if"|"health"} View */

const VIEWS = ["clients", "connections", "events", "policy", "what-if", "health"];

/**
 * @param {string} hash of the address
 * @returns {{view: View, token: string, span: string, client: string}} by default the live page; *span*: the
 *   time range of the events, FROM-TO in seconds since the epoch; *client*: an address to filter connections by
 */
export function viewOf(hash) {
  const [name, argument = ""] = hash.replace(/^#/, "").split("/", 2);
  if (name === "connection" && /^[0-9a-f]{8,9}$/.test(argument)) return {view: "connection", token: argument, span: "", client: ""};
  const span = name === "events" && /^[0-9]{1,11}-[0-9]{1,11}$/.test(argument) ? argument : "";
  const client = name === "connections" && /^[0-9a-f.:]{2,45}$/.test(argument) ? argument : "";
  if (VIEWS.includes(name)) return {view: /** @type {View} */ (name), token: "", span, client};
  return {view: "live", token: "", span: "", client: ""};
}

/**
 * Returns the address of the events from one time to another.
 * @param {number} from @param {number} to
 */
export function eventsAddress(from, to) {
  return `#events/${Math.floor(from)}-${Math.ceil(to)}`;
}
