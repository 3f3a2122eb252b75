// SPDX-License-Identifier: GPL-2.0-or-later
import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import test from "node:test";
import {colourNumber, assignColours} from "../../../console/mptcp_console/static/js/colours.mjs";

const CSS = readFileSync(new URL("../../../console/mptcp_console/static/console.css", import.meta.url), "utf8");
/** The style blocks: light, dark if chosen with the button, and dark if chosen by the system. */
const THEMES = CSS.split(/color-scheme: (?:light|dark);/).slice(1, 4).map(block => block.slice(0, block.indexOf("}")));

/** @param {string} theme @param {string} name */
function colourOf(theme, name) {
  return new RegExp(`--${name}: (#[0-9a-f]{6});`).exec(theme)?.[1] ?? "";
}

/** Relative luminance by WCAG 2.2. @param {string} colour */
function luminance(colour) {
  const [red, green, blue] = [1, 3, 5].map(start => parseInt(colour.slice(start, start + 2), 16) / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

test("sixteen paths and traffic without a path have a colour each", () => {
  const paths = Array.from({length: 16}, (_, number) => `path-${String(number).padStart(2, "0")}`);
  assignColours([...paths, null]);
  assert.equal(new Set([...paths, null].map(colourNumber)).size, 17);
  assert.deepEqual(paths.slice(0, 3).map(colourNumber), [1, 2, 3]);
  assert.equal(colourNumber(null), 8);
});

test("all colours exist in light and dark, differ, and are readable as text", () => {
  assert.equal(THEMES.length, 3);
  assert.equal(THEMES[1].replaceAll(/\s+/g, " "), THEMES[2].replaceAll(/\s+/g, " "));
  for (const theme of THEMES) {
    const surface = luminance(colourOf(theme, "surface"));
    const colours = Array.from({length: 17}, (_, index) => colourOf(theme, `series-${index + 1}`));
    assert.equal(new Set(colours).size, 17);
    for (const colour of colours) {
      const [high, low] = [luminance(colour), surface].sort((a, b) => b - a);
      assert.ok((high + 0.05) / (low + 0.05) >= 4.5, `${colour} on its surface`);
    }
  }
  for (let number = 1; number <= 17; number += 1) assert.ok(CSS.includes(`.c${number} { background: var(--series-${number}); }`), `.c${number}`);
});
