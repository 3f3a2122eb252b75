"""The proxy: distribution Squid behind an MPTCP listener, launched, checked and diagnosed."""
