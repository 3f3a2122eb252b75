"""Metrics for Prometheus: ``families`` are what is shown, ``Scraper`` the ASGI application that shows it:
``Route("/metrics", Scraper(Sources(status_socket)))``. A ``Mount`` would send Prometheus on to /metrics/.

docs/metrics.md has every metric, conf/grafana and conf/prometheus the dashboard and the alerts made of them.
"""

from .asgi import Scraper, Sources
from .families import families

__all__ = ["Scraper", "Sources", "families"]
