"""From verdicts to kernel objects: HTB classes, set entries, and the smallest change between two states. Pure."""
