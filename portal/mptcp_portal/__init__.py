"""Pages for phones: how to use the proxy, and how they are connected through it."""
