"""The command ``replay``: what the throttler would have decided of a capture. The daemon imports none of it."""
