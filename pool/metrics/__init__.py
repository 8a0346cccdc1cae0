"""Metrics: declared in `catalog`, counted in `process`, served by `serving`. Metrics of the
database are read from it at each scrape (`pool.ops.exporting`).
"""

from pool.metrics.process import Metrics

__all__ = ["Metrics"]
