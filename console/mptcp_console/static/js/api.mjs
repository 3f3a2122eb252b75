// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Requests to the console. A failed request throws an Error with a sentence.
 */

/** @param {string} path @param {Record<string, string|number>} [parameters] empty values are omitted */
export async function get(path, parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== "").map(([key, value]) => [key, String(value)]));
  // URLSearchParams.size is missing in Safari before 17 and Firefox before 112.
  const text = String(query);
  return answer(`/api/${path}${text === "" ? "" : `?${text}`}`, {});
}

/** @param {string} path @param {object} document */
export async function post(path, document) {
  const headers = {"Content-Type": "application/json"};
  return answer(`/api/${path}`, {method: "POST", headers, body: JSON.stringify(document)});
}

/** @param {string} url @param {RequestInit} options */
async function answer(url, options) {
  let response;
  try {
    response = await fetch(url, {...options, cache: "no-store"});
  } catch {
    throw new Error("the console does not answer");
  }
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("the login has expired");
  }
  let document;
  try {
    document = await response.json();
  } catch {
    throw new Error(`the console's answer cannot be read (status ${response.status})`);
  }
  if (!response.ok) throw new Error(document.error ?? `status ${response.status}`);
  return document;
}

/** Minimum milliseconds between the starts of two runs that are caused by events. */
const MIN_INTERVAL_MS = 1_000;

/**
 * Repeats *work* while *isActive* returns true: *seconds* after the end of the last run, or earlier after an event. Two
 * runs never overlap. It pauses while the page is hidden, and continues immediately when the page is visible again.
 */
export class Poller {
  #timer = 0;
  #isRunning = false;
  #runAgain = false;
  #lastStart = -Infinity;
  #eventTimer = 0;
  /** Whether a run was skipped while the page was hidden. */
  #isDue = false;

  /**
   * @param {() => Promise<void>} work @param {number} seconds @param {() => boolean} isActive
   * @param {Pick<Document, "hidden"|"addEventListener">} page
   */
  constructor(work, seconds, isActive, page = document) {
    this.work = work;
    this.seconds = seconds;
    this.isActive = isActive;
    this.page = page;
    page.addEventListener("visibilitychange", () => {
      if (!page.hidden && this.#isDue) this.#runIfVisible();
    });
  }

  /** Run now, and then repeatedly. */
  async runNow() {
    clearTimeout(this.#timer);
    this.#isDue = false;
    if (this.#isRunning) {
      this.#runAgain = true;
      return;
    }
    this.#isRunning = true;
    try {
      do {
        this.#runAgain = false;
        this.#lastStart = Date.now();
        await this.work();
      } while (this.#runAgain);
    } finally {
      this.#isRunning = false;
    }
    this.#timer = setTimeout(() => this.#runIfVisible(), this.seconds * 1000);
  }

  /** Run because of an event: immediately, or a second after the start of the last run. */
  runSoon() {
    if (this.#eventTimer !== 0 || !this.isActive()) return;
    this.#eventTimer = setTimeout(() => {
      this.#eventTimer = 0;
      this.#runIfVisible();
    }, Math.max(0, this.#lastStart + MIN_INTERVAL_MS - Date.now()));
  }

  #runIfVisible() {
    if (this.page.hidden) this.#isDue = true;
    else if (this.isActive()) this.runNow();
  }
}
