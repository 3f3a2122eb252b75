"""The daemon: what runs on the event loop."""
