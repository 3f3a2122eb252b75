/**
 * Which part of the page an address means. Pure.
 */

/** @typedef {"live"|"connections"|"connection"|"events"|"policy"|"what-if"} View */

/** @param {string} hash of the address @returns {{view: View, token: string}} the live page where it means nothing */
export function viewOf(hash) {
  const [name, token = ""] = hash.replace(/^#/, "").split("/", 2);
  if (name === "connection" && /^[0-9a-f]{8}$/.test(token)) return {view: "connection", token};
  if (name === "connections" || name === "events" || name === "policy" || name === "what-if") return {view: name, token: ""};
  return {view: "live", token: ""};
}
