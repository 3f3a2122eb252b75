// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The stream of moments: it is open while the page is visible, and reopened when it ends or falls silent.
 *
 * A browser has at most six connections to a console, for all tabs together, and a stream takes one. If hidden pages
 * kept theirs, a seventh tab would not load, nor would a page with six others in the back/forward cache.
 */
const MAX_SILENCE_MS = 15_000;
const RETRY_MS = 1_000;
const RETRY_IF_FULL_MS = 5_000;

export class Feed {
  /** @type {EventSource|null} */
  #source = null;
  #timer = 0;
  #isFull = false;
  /** Failures since the last moment. */
  #failures = 0;

  /**
   * @param {(moment: import("./types.mjs").Moment) => void} onMoment
   * @param {(why: "gone"|"full") => void} onLoss called when the stream breaks, or the console has too many pages
   * @param {() => void} onPause called when it ends without a fault, for example because the page is hidden
   */
  constructor(onMoment, onLoss, onPause) {
    this.onMoment = onMoment;
    this.onLoss = onLoss;
    this.onPause = onPause;
  }

  /** Start, and continue whenever the page is visible. */
  start() {
    document.addEventListener("visibilitychange", () => document.hidden ? this.#pause() : this.#open());
    addEventListener("pagehide", () => this.#pause());
    addEventListener("pageshow", event => {
      if (event.persisted && !document.hidden) this.#open();
    });
    if (!document.hidden) this.#open();
  }

  #pause() {
    this.#close();
    this.onPause();
  }

  #open() {
    this.#close();
    const source = new EventSource("/api/live");
    this.#source = source;
    source.addEventListener("moment", event => {
      this.#restartTimer();
      this.#isFull = false;
      this.#failures = 0;
      this.onMoment(JSON.parse(event.data));
    });
    source.addEventListener("open", () => this.#restartTimer());
    source.addEventListener("error", () => this.#refused());
    this.#restartTimer();
  }

  #restartTimer() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#broken(), MAX_SILENCE_MS);
  }

  /** The stream broke, or the console has too many; a request shows which. */
  #refused() {
    if (this.#failures > 0) {
      this.#broken();
      return;
    }
    this.#failures = 1;
    this.#pause();
    this.#retry();
  }

  #broken() {
    this.#close();
    this.#failures += 1;
    if (!this.#isFull) this.onLoss("gone");
    this.#timer = setTimeout(() => this.#retry(), RETRY_MS);
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
        this.onLoss("full");
        this.#timer = setTimeout(() => this.#retry(), RETRY_IF_FULL_MS);
      } else {
        this.#open();
      }
    } catch {
      this.#isFull = false;
      this.onLoss("gone");
      this.#timer = setTimeout(() => this.#retry(), RETRY_MS);
    }
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
