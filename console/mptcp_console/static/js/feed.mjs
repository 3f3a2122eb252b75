/**
 * The stream of moments: kept open, opened anew when it ends or falls silent.
 */
const SILENCE = 15_000;
const AGAIN = 1_000;

export class Feed {
  /** @type {EventSource|null} */
  #source = null;
  #timer = 0;

  /** @param {(moment: import("./types.mjs").Moment) => void} take @param {() => void} lose called when it breaks off */
  constructor(take, lose) {
    this.take = take;
    this.lose = lose;
  }

  open() {
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
      this.open();
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
