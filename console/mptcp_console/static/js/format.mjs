// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Formats numbers, sizes and times as all programs of the project do. Pure.
 */

const RATES = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]];
const SIZES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]];
const UNKNOWN = "–";

/** @param {number} value @returns {string} three digits */
function threeDigits(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/**
 * @param {number} value @param {(string|number)[][]} units @param {string} base
 * @returns {string}
 */
function withUnit(value, units, base) {
  for (const [factor, unit] of units) {
    if (value >= Number(factor) * 0.9995) return `${threeDigits(value / Number(factor))} ${unit}`;
  }
  return `${Math.round(value)} ${base}`;
}

/**
 * Returns the unit that keeps numbers up to *maximum* short.
 * @param {number} maximum bits/s @returns {{factor: number, unit: string}}
 */
export function unitOf(maximum) {
  const [factor, unit] = RATES.find(([each]) => maximum >= Number(each)) ?? [1, "bit/s"];
  return {factor: Number(factor), unit: String(unit)};
}

/**
 * Formats a measured rate with three digits.
 * @param {number|null|undefined} bits bits/s @returns {string}
 */
export function rate(bits) {
  return bits === null || bits === undefined ? UNKNOWN : withUnit(bits, RATES, "bit/s");
}

/**
 * Formats a configured rate without trailing zeros.
 * @param {number|null|undefined} bits @returns {string}
 */
export function configuredRate(bits) {
  if (bits === null || bits === undefined) return UNKNOWN;
  for (const [factor, unit] of RATES) {
    if (bits >= Number(factor)) return `${Number((bits / Number(factor)).toFixed(3))} ${unit}`;
  }
  return `${bits} bit/s`;
}

/** @param {number|null|undefined} bytes @returns {string} */
export function size(bytes) {
  return bytes === null || bytes === undefined ? UNKNOWN : withUnit(bytes, SIZES, "B");
}

/** @param {number|null|undefined} seconds @returns {string} */
export function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const value = seconds * 1000;
  return `${value < 9.95 ? value.toFixed(1) : value.toFixed(0)} ms`;
}

/**
 * Formats a duration.
 * @param {number} seconds @returns {string}
 */
export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** @param {number} number @param {string} noun @param {string} [plural] @returns {string} */
export function counted(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** @param {number} part @param {number} whole @returns {string} */
export function percent(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(part / whole < 0.0995 ? 1 : 0)} %` : UNKNOWN;
}

/**
 * Formats the local time of day.
 * @param {number} seconds since the epoch @returns {string} 10:15:03
 */
export function clock(seconds) {
  const date = new Date(seconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(part => String(part).padStart(2, "0")).join(":");
}

/**
 * Formats the time of day, with the date unless it is today.
 * @param {number} seconds @param {number} now both since the epoch
 */
export function moment(seconds, now) {
  const date = new Date(seconds * 1000);
  if (date.toDateString() === new Date(now * 1000).toDateString()) return clock(seconds);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map(part => String(part).padStart(2, "0"));
  return `${day.join("-")} ${clock(seconds).slice(0, 5)}`;
}

/**
 * Returns the last time at which local clocks showed *text*.
 * @param {string} text HH:MM or HH:MM:SS @param {number} now since the epoch
 * @returns {number|null} seconds since the epoch; null if it is not a time
 */
export function lastTime(text, now) {
  const found = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(text.trim());
  if (found === null) return null;
  const [hour, minute, second] = [found[1], found[2], found[3] ?? "0"].map(Number);
  const normalized = [hour, minute, second].map(part => String(part).padStart(2, "0")).join(":");
  const today = new Date(now * 1000);
  // The day before may also have skipped this time (daylight saving).
  for (const days of [0, 1, 2]) {
    const first = new Date(today.getFullYear(), today.getMonth(), today.getDate() - days, hour, minute, second).getTime() / 1000;
    // If clocks were set back, the time occurs twice, an hour or half an hour apart.
    for (const time of [first + 3600, first + 1800, first]) if (time <= now + 1 && clock(time) === normalized) return time;
  }
  return null;
}

/**
 * Formats a time in the policy's time zone, with the zone's name, because the reader's time zone may differ.
 *
 * @param {number} seconds @param {number} now both since the epoch @param {string} zone
 * @returns {string} 18:00 (Europe/Athens); in UTC if the browser does not know the zone
 */
export function timeInZone(seconds, now, zone) {
  let formatter;
  try {
    // Swedish dates are in ISO 8601 format.
    formatter = new Intl.DateTimeFormat("sv-SE", {timeZone: zone, dateStyle: "short", timeStyle: "short"});
  } catch {
    return timeInZone(seconds, now, "UTC");
  }
  const [day, time] = formatter.format(seconds * 1000).split(" ");
  return `${day === formatter.format(now * 1000).split(" ")[0] ? "" : `${day} `}${time} (${zone})`;
}
