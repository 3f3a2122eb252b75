/**
 * Which part of the page an address means. Pure.
 */

/** @typedef {"live"|"connections"|"connection"|"events"|"policy"|"what-if"} View */

/**
 * @param {string} hash of the address
 * @returns {{view: View, token: string, span: string}} the live page where it means nothing; *span*: FROM-TO of events, in
 *   seconds since the epoch
 */
export function viewOf(hash) {
  const [name, more = ""] = hash.replace(/^#/, "").split("/", 2);
  if (name === "connection" && /^[0-9a-f]{8}$/.test(more)) return {view: "connection", token: more, span: ""};
  const span = name === "events" && /^[0-9]{1,11}-[0-9]{1,11}$/.test(more) ? more : "";
  if (name === "connections" || name === "events" || name === "policy" || name === "what-if") return {view: name, token: "", span};
  return {view: "live", token: "", span: ""};
}

/**
 * The address of the events from one time to another.
 * @param {number} from @param {number} to
 */
export function eventsBetween(from, to) {
  return `#events/${Math.floor(from)}-${Math.ceil(to)}`;
}
