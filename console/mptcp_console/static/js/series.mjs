// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The graph's data: numbers over time, loaded from the history and extended by each snapshot. Pure.
 *
 * @typedef {import("./types.mjs").Columns} Columns
 * @typedef {import("./types.mjs").Overview} Overview
 * @typedef {{key: string, path: string|null, values: (number|null)[]}} Line
 * @typedef {{rule: string, share: string, cap: number, lowest: number, guaranteed: number, total: number, shared: number,
 *   capped: number}} Cap
 *   A rule's cap on a path. Its classes (one, or one per client) have ceils from *lowest* to *cap*, with the sum *total*,
 *   bits/s. *shared* of them also have subflows of other paths. *capped* is the number of capped subflows.
 * @typedef {{key: string, rule: string, path: string|null, values: (number|null)[], latest: Cap|null}} CapLine
 * @typedef {{path: string|null, rate: number|null, caps: Cap[]}} PathAtTime
 */

const UNNAMED = "no path";
/** Maximum seconds between two values that are connected, as in the console's history. */
const MAX_PAUSE_SECONDS = 15;

/** @param {string|null} path @returns {string} */
export function pathName(path) {
  return path ?? UNNAMED;
}

export class Series {
  /** @param {number} span shown seconds @param {number} step seconds between two values */
  constructor(span, step) {
    this.span = span;
    this.step = step;
    /** @type {number[]} */
    this.times = [];
    /** @type {Map<string, {path: string|null, direction: string, values: (number|null)[]}>} */
    this.paths = new Map();
    /** @type {Map<string, {rule: string, path: string|null, direction: string, caps: (Cap|null)[]}>} */
    this.rules = new Map();
  }

  get length() {
    return Math.floor(this.span / this.step);
  }

  /**
   * Replaces the data with the history.
   * @param {Columns} columns
   */
  load(columns) {
    const end = columns.first + columns.length * columns.step;
    this.times = Array.from({length: columns.length}, (_, index) => columns.first + index * columns.step);
    this.paths = new Map(columns.paths.map(each => [
      pathKey(each), {path: each.path, direction: each.direction, values: [...each.rate]},
    ]));
    this.rules = new Map(columns.rules.map(each => [
      ruleKey(each),
      {rule: each.rule, path: each.path, direction: each.direction, caps: each.cap.map((cap, index) => capAt(each, cap, index))},
    ]));
    this.#trim();
    return end;
  }

  /**
   * Appends *now*. If there was a long pause before it, the time of the pause has no values.
   * @param {Overview} now
   */
  push(now) {
    const second = Math.floor(now.time / this.step) * this.step;
    let last = this.times.at(-1);
    if (last !== undefined && second < last) {
      this.times = [];
      this.paths.clear();
      this.rules.clear();
      last = undefined;
    }
    // A value is valid for the time since the previous value.
    const slots = last === undefined || second - last > MAX_PAUSE_SECONDS ? 1 : Math.max(1, (second - last) / this.step);
    const from = last === undefined ? second : Math.max(last + this.step, second - this.span);
    for (let time = from; time <= second; time += this.step) {
      this.times.push(time);
      for (const each of this.paths.values()) each.values.push(null);
      for (const each of this.rules.values()) each.caps.push(null);
    }
    const end = this.times.length;
    const begin = end - slots;
    for (const each of now.paths) {
      const key = pathKey(each);
      let path = this.paths.get(key);
      if (path === undefined) {
        path = {path: each.path, direction: each.direction, values: new Array(end).fill(null)};
        this.paths.set(key, path);
      }
      path.values.fill(each.rate, begin);
    }
    for (const each of now.rules) {
      if (each.ceil === null) continue;
      const key = ruleKey(each);
      let rule = this.rules.get(key);
      if (rule === undefined) {
        rule = {rule: each.rule, path: each.path, direction: each.direction, caps: new Array(end).fill(null)};
        this.rules.set(key, rule);
      }
      rule.caps.fill(capOf(each, each.ceil), begin);
    }
    this.#trim();
  }

  #trim() {
    const surplus = this.times.length - this.length;
    if (surplus > 0) {
      this.times.splice(0, surplus);
      for (const each of this.paths.values()) each.values.splice(0, surplus);
      for (const each of this.rules.values()) each.caps.splice(0, surplus);
    }
    for (const [key, each] of this.rules) if (each.caps.every(value => value === null)) this.rules.delete(key);
    for (const [key, each] of this.paths) if (each.values.every(value => value === null)) this.paths.delete(key);
  }

  /** @param {string} direction @returns {Line[]} in the order of the paths' names */
  lines(direction) {
    const found = [...this.paths].filter(([, each]) => each.direction === direction)
      .map(([key, each]) => ({key, path: each.path, values: each.values}));
    return found.sort((a, b) => pathName(a.path).localeCompare(pathName(b.path)));
  }

  /** @param {string} direction @returns {CapLine[]} the total ceil of each rule on each path */
  caps(direction) {
    const found = [...this.rules].filter(([, each]) => each.direction === direction).map(([key, each]) => ({
      key, rule: each.rule, path: each.path, latest: each.caps.at(-1) ?? null,
      values: each.caps.map(cap => cap === null ? null : cap.total),
    }));
    return found.sort((a, b) => a.key.localeCompare(b.key));
  }

  /** @param {number} time @returns {number} the index of the value at that time, or of the nearest value; -1 without values */
  indexOf(time) {
    if (this.times.length === 0) return -1;
    const index = Math.floor((time - this.times[0]) / this.step);
    return Math.min(Math.max(index, 0), this.times.length - 1);
  }

  /** @param {number} time @returns {boolean} whether that time has a value; the latest value is valid until the next value */
  covers(time) {
    return this.times.length > 0 && time >= this.times[0] && time <= Number(this.times.at(-1)) + this.step + MAX_PAUSE_SECONDS;
  }

  /** @param {number} index @param {string} direction @returns {PathAtTime[]} the paths' rates and caps at that index */
  stateAt(index, direction) {
    const capsOf = /** @param {string|null} path */ path => [...this.rules.values()]
      .filter(each => each.direction === direction && each.path === path).map(each => each.caps[index] ?? null)
      .filter(/** @type {(cap: Cap|null) => cap is Cap} */ (cap => cap !== null));
    return this.lines(direction).map(line => ({
      path: line.path, rate: line.values[index] ?? null, caps: capsOf(line.path),
    }));
  }

  /**
   * Returns the current rates and caps of the shown paths. The series' last value may be a mean of ten seconds.
   * @param {Overview} overview @param {string} direction @returns {PathAtTime[]}
   */
  currentState(overview, direction) {
    const rates = new Map(overview.paths.filter(each => each.direction === direction).map(each => [each.path, each.rate]));
    const paths = new Set([...this.lines(direction).map(each => each.path), ...rates.keys()]);
    const rules = overview.rules.filter(each => each.direction === direction);
    return [...paths].sort((a, b) => pathName(a).localeCompare(pathName(b))).map(path => ({
      path, rate: rates.get(path) ?? null,
      caps: rules.flatMap(each => each.path === path && each.ceil !== null ? [capOf(each, each.ceil)] : []),
    }));
  }
}

/** @param {import("./types.mjs").Rule} each @param {number} cap @returns {Cap} */
function capOf(each, cap) {
  return {
    rule: each.rule, share: each.share, cap, lowest: each.lowest_ceil ?? cap, guaranteed: each.rate ?? cap,
    total: each.total_ceil ?? cap, shared: each.shared_classes ?? 0, capped: each.capped,
  };
}

/**
 * Returns a cap at one time from the history, with defaults for missing values.
 * @param {import("./types.mjs").RuleColumn} each @param {number|null} cap @param {number} index @returns {Cap|null}
 */
function capAt(each, cap, index) {
  if (cap === null) return null;
  return {
    rule: each.rule, share: each.share, cap, lowest: each.lowest?.[index] ?? cap, guaranteed: each.guaranteed?.[index] ?? cap,
    total: each.total?.[index] ?? cap, shared: each.shared?.[index] ?? 0, capped: each.capped?.[index] ?? 0,
  };
}

/** @param {{path: string|null, direction: string}} each */
function pathKey(each) {
  return JSON.stringify([each.direction, each.path]);
}

/** @param {{policy: string, rule: string, path: string|null, direction: string, share: string}} each */
function ruleKey(each) {
  return JSON.stringify([each.direction, each.path, each.policy, each.rule, each.share]);
}

const MAX_CAPS = 12;
const MAX_PATHS = 16;

/**
 * Returns the lines of *series* to draw, current caps first, and how many more paths and caps there are.
 * @param {Series} series @param {string} direction
 */
export function linesToDraw(series, direction) {
  const lines = series.lines(direction), caps = series.caps(direction);
  const currentFirst = [...caps.filter(each => each.latest !== null), ...caps.filter(each => each.latest === null)];
  const shown = {lines: lines.slice(0, MAX_PATHS), caps: currentFirst.slice(0, MAX_CAPS)};
  const top = axisMaximum(shown.lines, shown.caps);
  return {
    ...shown, top, highCaps: shown.caps.filter(each => highest([each]) > top).length,
    morePaths: Math.max(0, lines.length - MAX_PATHS), moreCaps: Math.max(0, caps.length - MAX_CAPS),
  };
}

/** @param {{values: (number|null)[]}[]} all @returns {number} */
function highest(all) {
  let maximum = 0;
  for (const {values} of all) for (const value of values) if (value !== null && value > maximum) maximum = value;
  return maximum;
}

/**
 * Returns the axis's maximum, with room for the highest rate, and for caps that are not far above it.
 * @param {Line[]} lines @param {CapLine[]} caps
 */
export function axisMaximum(lines, caps) {
  const highestRate = highest(lines);
  const near = caps.map(each => ({values: each.values.map(value => value !== null && value <= 4 * highestRate ? value : null)}));
  return Math.max(highestRate, highest(near), 1e5) * 1.08;
}
