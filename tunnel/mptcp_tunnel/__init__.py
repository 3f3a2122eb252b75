"""Multipath UDP: the packets of a tunnel over several paths, without the tunnel program's knowing."""
