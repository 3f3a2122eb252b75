// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The time of the console's clock, which all requests and displays use, because a browser's clock may be wrong.
 */
let offset = 0;

/** @param {number} time just received from the console, seconds since the epoch */
export function synchronize(time) {
  offset = time - Date.now() / 1000;
}

/** @returns {number} seconds since the epoch; by the browser's clock before the first answer */
export function now() {
  return Date.now() / 1000 + offset;
}
