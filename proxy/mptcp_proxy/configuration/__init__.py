"""squid.conf: reading it as Squid does, and finding every mistake in it before Squid meets one."""
