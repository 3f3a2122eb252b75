"""The state that outlives the daemon on disk."""
