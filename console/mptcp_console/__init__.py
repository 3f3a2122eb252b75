# SPDX-License-Identifier: GPL-2.0-or-later
"""The console: a web page about the throttler's state. A separate process that reads the status socket."""
