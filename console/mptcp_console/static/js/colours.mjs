// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * One colour per path, the same everywhere on the page, in the order of first use; the policy's paths get theirs first, by
 * name.
 */
/** One colour for each path that can be drawn, and one for traffic without a path. */
const COLOURS = 17;
const NO_PATH_COLOUR = 8;
/** @type {Map<string, number>} */
const numbers = new Map();

/** @param {string|null} path @returns {number} 1 to 17 */
export function colourNumber(path) {
  if (path === null) return NO_PATH_COLOUR;
  if (!numbers.has(path)) {
    const number = (numbers.size % (COLOURS - 1)) + 1;
    numbers.set(path, number < NO_PATH_COLOUR ? number : number + 1);
  }
  return /** @type {number} */ (numbers.get(path));
}

/**
 * Assigns colours to a policy's paths in the order of their names.
 * @param {(string|null)[]} paths
 */
export function assignColours(paths) {
  [...paths].filter(path => path !== null).sort().forEach(colourNumber);
}

/** @param {string} name of a custom property @returns {string} its value now, in light or dark */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** @param {string|null} path @returns {string} */
export function pathColour(path) {
  return colour(`--series-${colourNumber(path)}`);
}
