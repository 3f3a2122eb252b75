// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * The stream of snapshots: it is open while the page is visible, and opened again when it ends or becomes silent.
 *
 * A browser has at most six connections to a console, for all tabs together, and each stream occupies one of them. If
 * hidden pages kept their streams, a seventh tab, or a page with six others in the back/forward cache, would not load.
 */
const MAX_SILENCE_MS = 15_000;
const RETRY_MS = 1_000;
const RETRY_IF_FULL_MS = 5_000;

export class Feed {
  /** @type {EventSource|null} */
  #source = null;
  #timer = 0;
  #isFull = false;
  /** Failures since the last snapshot. */
  #failures = 0;

  /**
   * @param {(snapshot: import("./types.mjs").Snapshot) => void} onSnapshot
   * @param {(why: "broken"|"full") => void} onLoss called when the stream breaks, or the console has too many pages
   * @param {() => void} onPause called when the stream ends without a fault, for example because the page is hidden
   */
  constructor(onSnapshot, onLoss, onPause) {
    this.onSnapshot = onSnapshot;
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
    source.addEventListener("snapshot", event => {
      this.#restartTimer();
      this.#isFull = false;
      this.#failures = 0;
      this.onSnapshot(JSON.parse(event.data));
    });
    source.addEventListener("open", () => this.#restartTimer());
    source.addEventListener("error", () => this.#onError());
    this.#restartTimer();
  }

  #restartTimer() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#onBroken(), MAX_SILENCE_MS);
  }

  /** The stream broke, or the console has too many streams; a request shows the cause. */
  #onError() {
    if (this.#failures > 0) {
      this.#onBroken();
      return;
    }
    this.#failures = 1;
    this.#pause();
    this.#retry();
  }

  #onBroken() {
    this.#close();
    this.#failures += 1;
    if (!this.#isFull) this.onLoss("broken");
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
      this.onLoss("broken");
      this.#timer = setTimeout(() => this.#retry(), RETRY_MS);
    }
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
