"""Makes this folder importable, so that the tests find the targets."""
