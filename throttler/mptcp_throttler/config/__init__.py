"""The operator's files: settings, policy and connections read from disk and checked."""
