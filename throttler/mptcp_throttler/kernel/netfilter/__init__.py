"""Netfilter: what sends a subflow's packets to its class."""
