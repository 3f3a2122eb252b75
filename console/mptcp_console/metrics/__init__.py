"""Metrics for Prometheus: ``families`` are what is shown, ``Scraper`` the ASGI application that shows it:
``Route("/metrics", Scraper(Sources(status_socket)))``. A ``Mount`` would send Prometheus on to /metrics/.

``ProxyHealth`` answers the console's page about the same sources.

docs/metrics.md has every metric, conf/grafana and conf/prometheus the dashboard and the alerts made of them.
"""

from .asgi import Scraper, Sources
from .families import families
from .proxy import ProxyHealth

__all__ = ["ProxyHealth", "Scraper", "Sources", "families"]
