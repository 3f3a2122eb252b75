"""The operator's policy: load it from YAML, and evaluate connections into verdicts. Pure."""
