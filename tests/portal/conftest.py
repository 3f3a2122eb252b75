"""Makes this folder importable, so that its tests find what they share."""
