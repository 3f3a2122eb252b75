"""What the gateway reads of the kernel, and puts there."""
