"""The proxy's sockets: diagnostics, limits and counters."""
