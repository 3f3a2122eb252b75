// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Parses typed addresses: complete, incomplete, or wrong. Pure.
 */

/** @typedef {{kind: "none"|"whole"|"incomplete"|"wrong", address: string}} Typed *address*: in the throttler's notation if *kind* is "whole", otherwise empty */

/** @param {string} text @returns {Typed} */
export function addressOf(text) {
  const word = text.trim().toLowerCase();
  if (word === "") return {kind: "none", address: ""};
  const found = word.includes(":") ? parseIpv6(word) : /^[0-9a-f]{1,4}$/.test(word) ? "incomplete" : parseIpv4(word);
  return found === "incomplete" || found === "wrong" ? {kind: found, address: ""} : {kind: "whole", address: found};
}

/** @param {Typed["kind"]} kind @returns {string} the hint next to the field; usually empty */
export function addressHint(kind) {
  if (kind === "incomplete") return "The address is incomplete: all clients are shown.";
  return kind === "wrong" ? "This is not an IP address or a known name: all clients are shown." : "";
}

/** @param {string} word @returns {string} the address, "incomplete" or "wrong" */
function parseIpv4(word) {
  const parts = word.split(".");
  const isByte = (/** @type {string} */ part) => /^(0|[1-9][0-9]{0,2})$/.test(part) && Number(part) <= 255;
  if (parts.length > 4 || !parts.every((part, index) => isByte(part) || (part === "" && index > 0 && index === parts.length - 1))) {
    return "wrong";
  }
  return parts.length === 4 && parts[3] !== "" ? word : "incomplete";
}

/**
 * Parses RFC 4291, 2.2; formats by RFC 5952.
 * @param {string} word @returns {string} the address, "incomplete" or "wrong"
 */
function parseIpv6(word) {
  const halves = word.split("::");
  if (word === ":") return "incomplete";
  if (halves.length > 2 || word.includes(":::") || /^:[^:]/.test(word)) return "wrong";
  const endsWithColon = /[^:]:$/.test(word);
  const [before, after] = halves.map(half => half.replace(/:$/, "").split(":").filter(group => group !== ""));
  const all = [...before, ...(after ?? [])];
  const last = all.at(-1) ?? "";
  if (last.includes(".")) {
    const tail = parseIpv4(last);
    if (tail === "incomplete" || tail === "wrong" || endsWithColon) return endsWithColon ? "wrong" : tail;
    const [a, b, c, d] = tail.split(".").map(Number);
    (after !== undefined && after.length > 0 ? after : before).splice(-1, 1, ((a << 8) + b).toString(16), ((c << 8) + d).toString(16));
  }
  const groups = [...before, ...(after ?? [])];
  if (!groups.every(group => /^[0-9a-f]{1,4}$/.test(group))) return "wrong";
  if (after === undefined) {
    if (groups.length > 8 || (groups.length === 8 && endsWithColon)) return "wrong";
    return groups.length === 8 ? compress(groups) : "incomplete";
  }
  if (groups.length > 7) return "wrong";
  if (endsWithColon) return groups.length === 7 ? "wrong" : "incomplete";
  return compress([...before, ...new Array(8 - groups.length).fill("0"), ...after]);
}

/** @param {string[]} groups eight @returns {string} without the longest run of zeros */
function compress(groups) {
  const numbers = groups.map(group => parseInt(group, 16));
  let [begin, length] = [0, 1];
  for (let from = 0; from < 8; from += 1) {
    let to = from;
    while (to < 8 && numbers[to] === 0) to += 1;
    if (to - from > length) [begin, length] = [from, to - from];
  }
  const words = numbers.map(number => number.toString(16));
  if (length < 2) return words.join(":");
  return `${words.slice(0, begin).join(":")}::${words.slice(begin + length).join(":")}`;
}
