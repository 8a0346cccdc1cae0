"""Metrics: every one declared once in `catalog`, counted in `process`, served by `serving`. What describes the table is read from the table when
somebody asks (`pool.exporting`)."""

from pool.metrics.process import Metrics

__all__ = ["Metrics"]
