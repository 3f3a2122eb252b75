"""Makes this folder importable, so that the kernel tests find what they share."""
