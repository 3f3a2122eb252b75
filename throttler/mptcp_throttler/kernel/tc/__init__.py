"""Traffic control: HTB trees, root qdiscs, segment sizes."""
