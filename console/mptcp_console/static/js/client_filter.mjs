// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The field for a client's address, on two pages.
 */
import {addressHint, addressOf} from "./addresses.mjs";
import {setText} from "./dom.mjs";
import {addressNamed} from "./names.mjs";

/**
 * The requested client, by address or name; empty while *field* has no whole address, and *hint* says so.
 * @param {HTMLInputElement} field @param {Element} hint @returns {string}
 */
export function clientIn(field, hint) {
  const found = addressNamed(field.value);
  if (found !== "") {
    setText(hint, found);
    return found;
  }
  const {kind, address} = addressOf(field.value);
  setText(hint, addressHint(kind));
  return address;
}
