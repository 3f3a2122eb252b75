// SPDX-License-Identifier: GPL-2.0-or-later
/**
 * Helpers for elements. Text is never parsed as markup, because it may contain names of rules or paths.
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

/**
 * Returns the element with this ID in index.html.
 * @param {string} id @returns {any}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`no element #${id}`);
  return found;
}

/** @param {Element} element @param {string} text set only if it differs, so that a selection is kept */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes the children of *parent* match *items*. Existing children are updated, so that focus and selection are kept. If
 * the order changes, the other children are moved around the child with the focus, because a moved element loses it.
 * @template T
 * @template {HTMLElement} E
 * @param {Element} parent @param {T[]} items @param {(item: T) => string} key
 * @param {(item: T) => E} create @param {(element: E, item: T) => void} update
 */
export function updateChildren(parent, items, key, create, update) {
  const existing = new Map();
  for (const child of parent.children) {
    if (child instanceof HTMLElement && child.dataset.key !== undefined) existing.set(child.dataset.key, child);
  }
  const elements = items.map(item => {
    const name = key(item);
    let element = existing.get(name);
    if (element === undefined) {
      element = create(item);
      element.dataset.key = name;
    }
    existing.delete(name);
    update(element, item);
    return element;
  });
  for (const element of existing.values()) element.remove();
  const focused = elements.findIndex(each => each.contains(document.activeElement));
  const selected = parent.contains(getSelection()?.anchorNode ?? null) ? selection() : null;
  if (focused < 0) {
    /** @type {Element|null} */
    let next = [...parent.children].find(child => child instanceof HTMLElement && child.dataset.key !== undefined) ?? null;
    for (const element of elements) {
      if (element === next) next = element.nextElementSibling;
      else parent.insertBefore(element, next);
    }
  } else {
    for (let index = focused - 1; index >= 0; index -= 1) {
      if (elements[index].nextElementSibling !== elements[index + 1]) parent.insertBefore(elements[index], elements[index + 1]);
    }
    for (let index = focused + 1; index < elements.length; index += 1) {
      if (elements[index].previousElementSibling !== elements[index - 1]) elements[index - 1].after(elements[index]);
    }
  }
  if (selected !== null) select(selected);
}

/** @typedef {{anchor: Node, anchorOffset: number, focus: Node, focusOffset: number}} Selected */

/** @returns {Selected|null} the user's selection */
function selection() {
  const found = getSelection();
  if (found === null || found.isCollapsed || found.anchorNode === null || found.focusNode === null) return null;
  return {anchor: found.anchorNode, anchorOffset: found.anchorOffset, focus: found.focusNode, focusOffset: found.focusOffset};
}

/**
 * Restores the selection after elements were moved.
 * @param {Selected} selected
 */
function select({anchor, anchorOffset, focus, focusOffset}) {
  const current = getSelection();
  if (current === null || (current.anchorNode === anchor && current.focusNode === focus) || !anchor.isConnected || !focus.isConnected) return;
  current.setBaseAndExtent(anchor, anchorOffset, focus, focusOffset);
}

/**
 * Sets the cells of a row, except its first cell, the header.
 * @param {HTMLTableRowElement} row @param {(string|Node)[]} values
 */
export function fill(row, values) {
  values.forEach((value, index) => {
    const cell = row.cells[index + 1];
    if (typeof value === "string") setText(cell, value);
    else if (cell.firstChild === null || !cell.firstChild.isEqualNode(value)) cell.replaceChildren(value);
  });
}

/**
 * Fills a list of names and values.
 * @param {Element} list @param {[string, string|Node][]} facts
 */
export function facts(list, facts) {
  updateChildren(list, facts, ([name]) => name, ([name]) => make("div", {}, make("dt", {}, name), make("dd")),
    (element, [, value]) => {
      const existing = /** @type {HTMLElement} */ (element.lastElementChild);
      if (typeof value === "string") setText(existing, value);
      else if (existing.firstChild === null || !existing.firstChild.isEqualNode(value)) existing.replaceChildren(value);
    });
}
