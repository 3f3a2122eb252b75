# SPDX-License-Identifier: GPL-2.0-or-later
"""Code that the programs of this project share, such as parsers, formats and messages."""

__version__ = "0.2.0"
"""The version of the distribution, as in pyproject.toml."""
