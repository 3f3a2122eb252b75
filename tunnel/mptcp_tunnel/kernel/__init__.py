"""What the tunnel has in the kernel: programs, a device, routes, and packets of its own."""
