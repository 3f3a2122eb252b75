"""The kernel's MPTCP path manager: events and priorities."""
