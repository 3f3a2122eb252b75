# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests for the proxy, each with what it must get: attacks on others through it, malformed messages, conformance."""
