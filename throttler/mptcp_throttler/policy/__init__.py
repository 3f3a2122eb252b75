"""The operator's policy: a YAML document to a :class:`Policy`, a connection to verdicts. Pure."""
