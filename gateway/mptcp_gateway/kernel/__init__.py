"""What the gateway reads from the kernel, and sets there."""
