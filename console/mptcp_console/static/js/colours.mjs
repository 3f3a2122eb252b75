/**
 * One colour for each path, everywhere on the page: by the order in which paths were met.
 */
/** As many as paths are drawn, and one for what belongs to no path. */
const COLOURS = 17;
const OF_NO_PATH = 8;
/** @type {Map<string, number>} */
const numbers = new Map();

/** @param {string|null} path @returns {number} 1 to 17 */
export function colourNumber(path) {
  if (path === null) return OF_NO_PATH;
  if (!numbers.has(path)) {
    const number = (numbers.size % (COLOURS - 1)) + 1;
    numbers.set(path, number < OF_NO_PATH ? number : number + 1);
  }
  return /** @type {number} */ (numbers.get(path));
}

/**
 * Give the paths of a policy their colours by name, whatever comes first.
 * @param {(string|null)[]} paths
 */
export function meet(paths) {
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
