/**
 * The stream of moments: kept open while the page is seen, opened anew when it ends or falls silent.
 *
 * A browser has six connections to a console at most, for all tabs together, and a stream takes one of them. Without an
 * end of it when nobody sees the page, a seventh tab would not load; neither would a page after six that the browser
 * keeps for the way back.
 */
const SILENCE = 15_000;
const AGAIN = 1_000;

export class Feed {
  /** @type {EventSource|null} */
  #source = null;
  #timer = 0;

  /**
   * @param {(moment: import("./types.mjs").Moment) => void} take
   * @param {() => void} lose called when it breaks off
   * @param {() => void} rest called when it ends because nobody sees the page
   */
  constructor(take, lose, rest) {
    this.take = take;
    this.lose = lose;
    this.rest = rest;
  }

  /** Begin, and go on whenever the page is seen. */
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
      this.take(JSON.parse(event.data));
    });
    source.addEventListener("open", () => this.#expect());
    source.addEventListener("error", () => this.#broken());
    this.#expect();
  }

  #expect() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#broken(), SILENCE);
  }

  #broken() {
    this.#close();
    this.lose();
    this.#timer = setTimeout(() => this.#retry(), AGAIN);
  }

  async #retry() {
    // A stream says nothing of why it was refused; a request does: the token may have expired.
    try {
      const response = await fetch("/api/history?step=10", {cache: "no-store", signal: AbortSignal.timeout(5_000)});
      if (response.status === 401) {
        location.assign("/login");
        return;
      }
      if (!document.hidden) this.#open();
    } catch {
      this.#timer = setTimeout(() => this.#retry(), AGAIN);
    }
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
