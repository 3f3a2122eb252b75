// SPDX-License-Identifier: GPL-2.0-or-later
// Before drawing: set the colour scheme chosen on this page, or else the system's.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage, the system's choice applies.
}
