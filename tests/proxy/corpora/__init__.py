"""Requests for the proxy, each with what it must get: attacks on others through it, malformed messages, conformance."""
