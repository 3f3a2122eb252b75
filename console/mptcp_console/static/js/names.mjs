// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Names for addresses, from the operator's file; the name is shown after the address.
 */

/** @type {Map<string, string>} */
let names = new Map();

/** @param {Record<string, string>} byAddress */
export function setNames(byAddress) {
  names = new Map(Object.entries(byAddress));
}

/**
 * Returns *text* with the name after each address that has one.
 * @param {string} text @returns {string} 10.77.1.2:40000 (phone)
 */
export function withNames(text) {
  if (names.size === 0) return text;
  return text.replace(/[^\s,;()]+/g, word => {
    const end = /[:.]$/.test(word) ? word.slice(-1) : "";
    const whole = end === "" ? word : word.slice(0, -1);
    const name = names.get(hostOf(whole));
    return name === undefined ? word : `${whole} (${name})${end}`;
  });
}

/**
 * Returns the address with this name.
 * @param {string} name @returns {string} empty if the name is unknown
 */
export function addressNamed(name) {
  return [...names].find(([, each]) => each.toLowerCase() === name.trim().toLowerCase())?.[0] ?? "";
}

/** @param {string} end ADDR, ADDR:PORT, [ADDR]:PORT */
function hostOf(end) {
  return /^\[(.+)\](?::\d+)?$/.exec(end)?.[1] ?? /^([\d.]+)(?::\d+)?$/.exec(end)?.[1] ?? end;
}
