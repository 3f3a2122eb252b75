// SPDX-License-Identifier: GPL-2.0-or-later
// Before drawing: set light or dark as chosen here, otherwise as the system has it.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage, the system's choice applies.
}
