"""The console: what the throttler knows and does, as a web page. A process of its own that reads the status socket."""
