// SPDX-License-Identifier: GPL-2.0-or-later
// Shows that the token was refused; the form itself needs no script.
const refused = document.getElementById("refused");
if (refused !== null) refused.hidden = location.search !== "?refused";
