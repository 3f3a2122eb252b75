"""Shared by all components of the distribution."""

__version__ = "0.1.0"
"""Of the distribution with all components; pyproject.toml has the same."""
