"""The operator's files: read and check settings, policy and connections."""
