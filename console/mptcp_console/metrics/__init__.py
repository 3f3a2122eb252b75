"""Metrics for Prometheus: ``Scraper(Sources(…))`` is the ASGI application at /metrics, ``families`` what it shows.

docs/metrics.md has every metric, conf/grafana and conf/prometheus the dashboard and the alerts made of them.
"""

from .asgi import Scraper, Sources
from .families import families

__all__ = ["Scraper", "Sources", "families"]
