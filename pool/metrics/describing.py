"""The catalog in words: for `warmpool metrics list` and docs/metrics.md."""

from __future__ import annotations

from typing import Any

from pool.metrics.catalog import CATALOG, Origin

_HEAD = """\
# Metrics

Written by `warmpool metrics list --markdown`. Every process serves its own at `metrics_port`; what describes the table comes from
`warmpool exporter`, which reads it when it is asked. Ages are by the database's clock. All labels are bounded: orgs are the twenty nearest to
their cap, profiles those that are configured.

`warmpool up` gives each component a port and writes them to `run/metrics.json` of the data directory, which Prometheus reads as it is:

    scrape_configs:
      - job_name: warmpool
        scrape_interval: 5s
        file_sd_configs:
          - files: [".warmpool/run/metrics.json"]

Alerts are in [charts/warmpool/files/alerts.yaml](../charts/warmpool/files/alerts.yaml), each with a section in the [runbook](runbook.md). The
dashboard is [charts/warmpool/files/dashboard.json](../charts/warmpool/files/dashboard.json).
"""
_TITLES = {Origin.PROCESS: "Of each process", Origin.TABLE: "Of the table"}


def plain() -> list[dict[str, Any]]:
    """Every metric as plain data."""
    return [
        {
            "name": m.full_name,
            "kind": str(m.kind),
            "labels": list(m.labels),
            "meaning": m.doc,
            "from": str(m.origin),
        }
        for m in CATALOG.values()
    ]


def markdown() -> str:
    """The page."""
    lines = [_HEAD]
    for origin, title in _TITLES.items():
        lines += [f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{m.full_name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.doc} |"
            for m in CATALOG.values()
            if m.origin is origin
        ]
        lines.append("")
    return "\n".join(lines)
