"""What outlives the daemon on disk."""
