// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The stream of moments: it is open while the page is visible, and reopened when it ends or falls silent.
 *
 * A browser has at most six connections to a console, for all tabs together, and a stream takes one. If hidden pages
 * kept theirs, a seventh tab would not load, nor would a page with six others in the back/forward cache.
 */
const SILENCE = 15_000;
const AGAIN = 1_000;
const AGAIN_WHERE_FULL = 5_000;

export class Feed {
  /** @type {EventSource|null} */
  #source = null;
  #timer = 0;
  #isFull = false;
  /** Failures since the last moment. */
  #failures = 0;

  /**
   * @param {(moment: import("./types.mjs").Moment) => void} take
   * @param {(why: "gone"|"full") => void} lose called when the stream breaks, or the console has too many pages
   * @param {() => void} rest called when it ends without a fault, for example because the page is hidden
   */
  constructor(take, lose, rest) {
    this.take = take;
    this.lose = lose;
    this.rest = rest;
  }

  /** Start, and continue whenever the page is visible. */
  start() {
    document.addEventListener("visibilitychange", () => document.hidden ? this.#rest() : this.#open());
    addEventListener("pagehide", () => this.#rest());
    addEventListener("pageshow", event => {
      if (event.persisted && !document.hidden) this.#open();
    });
    if (!document.hidden) this.#open();
  }

  #rest() {
    this.#close();
    this.rest();
  }

  #open() {
    this.#close();
    const source = new EventSource("/api/live");
    this.#source = source;
    source.addEventListener("moment", event => {
      this.#expect();
      this.#isFull = false;
      this.#failures = 0;
      this.take(JSON.parse(event.data));
    });
    source.addEventListener("open", () => this.#expect());
    source.addEventListener("error", () => this.#refused());
    this.#expect();
  }

  #expect() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#broken(), SILENCE);
  }

  /** The stream broke, or the console has too many; a request shows which. */
  #refused() {
    if (this.#failures > 0) {
      this.#broken();
      return;
    }
    this.#failures = 1;
    this.#rest();
    this.#retry();
  }

  #broken() {
    this.#close();
    this.#failures += 1;
    if (!this.#isFull) this.lose("gone");
    this.#timer = setTimeout(() => this.#retry(), AGAIN);
  }

  async #retry() {
    // Unlike a stream, a request shows why it was refused: the token has expired, or the console has too many pages.
    try {
      // TypeScript 4.8 does not know AbortSignal.timeout.
      const signals = /** @type {typeof AbortSignal & {timeout(milliseconds: number): AbortSignal}} */ (AbortSignal);
      const response = await fetch("/api/viewers", {cache: "no-store", signal: signals.timeout(5_000)});
      if (response.status === 401) {
        location.assign("/login");
        return;
      }
      const {watching, most} = await response.json();
      this.#isFull = watching >= most;
      if (document.hidden) return;
      if (this.#isFull) {
        this.lose("full");
        this.#timer = setTimeout(() => this.#retry(), AGAIN_WHERE_FULL);
      } else {
        this.#open();
      }
    } catch {
      this.#isFull = false;
      this.lose("gone");
      this.#timer = setTimeout(() => this.#retry(), AGAIN);
    }
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
