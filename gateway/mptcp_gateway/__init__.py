"""The host between a home and its uplinks: it looks after these."""
