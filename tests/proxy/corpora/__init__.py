# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests for the proxy with their required results: attacks through it, malformed messages, conformance."""
