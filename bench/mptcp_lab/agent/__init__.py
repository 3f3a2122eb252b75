# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs for the hosts of an experiment: only the standard library, Python 3.9 or newer.

Over ssh this folder is copied to the host and runs as package ``agent``; so it uses only relative imports, and nothing
outside the folder.
"""
