// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The input field for a client's address, used on two pages.
 */
import {addressHint, addressOf} from "./addresses.mjs";
import {setText} from "./dom.mjs";
import {addressNamed} from "./names.mjs";

/**
 * Returns the requested client, given by address or name; empty while *field* has no complete address, which *hint*
 * then explains.
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
