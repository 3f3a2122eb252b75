/**
 * Elements: text is only ever set as text, so that no name of a rule or path can become markup.
 */

/**
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} name @param {Record<string, string>} [attributes] @param {(Node|string)[]} children
 * @returns {HTMLElementTagNameMap[N]}
 */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** The element of that id, which index.html has. @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element #${id}`);
  return found;
}

/** @param {Element} element @param {string} text set only if it differs, so that a selection stays */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Make the children of *parent* those of *items*: what is there stays and is updated, so that focus and selection do.
 * @template T
 * @template {HTMLElement} E
 * @param {Element} parent @param {T[]} items @param {(item: T) => string} key
 * @param {(item: T) => E} create @param {(element: E, item: T) => void} update
 */
export function keyed(parent, items, key, create, update) {
  const there = new Map();
  for (const child of [...parent.children]) {
    if (child instanceof HTMLElement && child.dataset.key !== undefined) there.set(child.dataset.key, child);
  }
  /** @type {Element|null} */
  let next = [...parent.children].find(child => child instanceof HTMLElement && child.dataset.key !== undefined) ?? null;
  for (const item of items) {
    const name = key(item);
    let element = there.get(name);
    if (element === undefined) {
      element = create(item);
      element.dataset.key = name;
    }
    there.delete(name);
    update(element, item);
    if (element === next) next = element.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  for (const element of there.values()) {
    if (element === next) next = element.nextElementSibling;
    element.remove();
  }
}

/** The cells of one row after its head, by texts or nodes. @param {HTMLTableRowElement} row @param {(string|Node)[]} values */
export function fill(row, values) {
  values.forEach((value, index) => {
    const cell = row.cells[index + 1];
    if (typeof value === "string") setText(cell, value);
    else if (cell.firstChild === null || !cell.firstChild.isEqualNode(value)) cell.replaceChildren(value);
  });
}

/** A list of names and values. @param {Element} list @param {[string, string|Node][]} facts */
export function facts(list, facts) {
  keyed(list, facts, ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (element, [, value]) => {
      const there = /** @type {HTMLElement} */ (element.lastElementChild);
      if (typeof value === "string") setText(there, value);
      else if (there.firstChild === null || !there.firstChild.isEqualNode(value)) there.replaceChildren(value);
    });
}
