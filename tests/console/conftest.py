"""Makes this folder importable, so that unit and kernel tests share the fake throttler and the browser."""
