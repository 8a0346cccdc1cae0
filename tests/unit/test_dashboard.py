"""The dashboard and the page of metrics match their sources and omit no metric silently."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pool.metrics import dashboard, describing
from pool.metrics.catalog import CATALOG

ROOT = Path(__file__).parents[2]


def shown() -> set[str]:
    """Return the names of our series in all queries."""
    return {name for query in dashboard.queries() for name in re.findall(r"warmpool_\w+", query)}


def test_the_shipped_dashboard_matches_its_source() -> None:
    shipped = ROOT / "charts" / "warmpool" / "files" / "dashboard.json"
    assert shipped.read_text() == dashboard.as_json(), (
        "renew it: warmpool metrics dashboard > charts/warmpool/files/dashboard.json"
    )


def test_docs_metrics_md_matches_the_catalog() -> None:
    page = ROOT / "docs" / "metrics.md"
    assert page.read_text() == describing.markdown(), (
        "renew it: warmpool metrics list --markdown > docs/metrics.md"
    )


def test_every_metric_that_the_dashboard_shows_exists() -> None:
    assert shown() <= {series for m in CATALOG.values() for series in m.series}


def test_every_metric_is_shown_or_listed_as_not_shown_with_the_reason() -> None:
    unseen = {m.name for m in CATALOG.values() if not shown() & set(m.series)}
    assert unseen <= dashboard.NOT_SHOWN.keys()
    assert dashboard.NOT_SHOWN.keys() <= CATALOG.keys()
    # A metric that is listed as not shown must not be shown; org_cap is only ever a divisor.
    assert dashboard.NOT_SHOWN.keys() - unseen <= {"org_cap"}


def test_queries_use_only_labels_that_the_metric_has() -> None:
    series = {name: m for m in CATALOG.values() for name in m.series}
    for query in dashboard.queries():
        for name, selector in re.findall(r"(warmpool_\w+)\{([^}]*)\}", query):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
                assert label in (*series[name].labels, "le"), (name, label)


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(dashboard.as_json())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
