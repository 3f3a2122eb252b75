/**
 * What time it is by the console's clock: a browser's own may be minutes off, and what is asked for and shown is by the
 * console's.
 */
let ahead = 0;

/** @param {number} time that the console said just now, seconds since the epoch */
export function heard(time) {
  ahead = time - Date.now() / 1000;
}

/** @returns {number} seconds since the epoch; by the browser's clock before the console has said anything */
export function now() {
  return Date.now() / 1000 + ahead;
}
