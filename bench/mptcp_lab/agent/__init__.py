# SPDX-License-Identifier: GPL-2.0-or-later
"""Programs that run on the hosts of an experiment. They need only the standard library of Python 3.9 or newer.

For a host that is reached by ssh, this folder is copied there and runs as package ``agent``. It therefore uses only
relative imports, and nothing outside the folder.
"""
