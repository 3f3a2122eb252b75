"""Multipath TCP on the wire: option bytes to frozen dataclasses, and the connection tracker. Pure."""
