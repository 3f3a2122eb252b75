# SPDX-License-Identifier: GPL-2.0-or-later
"""Metrics for Prometheus. ``families`` creates them, and the ASGI application ``Scraper`` serves them.

``ProxyHealth`` answers the console's page from the same sources. docs/metrics.md lists all metrics; conf/grafana and
conf/prometheus contain a dashboard and alerts.
"""

from .asgi import Scraper, Sources
from .families import families
from .proxy import ProxyHealth

__all__ = ["ProxyHealth", "Scraper", "Sources", "families"]
