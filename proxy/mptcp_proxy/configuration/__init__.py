"""Reads squid.conf as Squid does, and finds every mistake in it beforehand."""
