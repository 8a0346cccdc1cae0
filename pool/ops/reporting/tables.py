"""Lists of workers, claims, requests, orgs, profiles and passes, for `warmpool get KIND` and the board's
`/api/get/KIND`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pool.core.profiles import revision
from pool.core.settings import Settings
from pool.ops.reporting.shapes import claim, org, request, worker
from pool.ops.reporting.status import status
from pool.store import Store, now, operator_queries, orgs
from pool.store.operator_queries import ListFilter

Rows = list[dict[str, Any]]


def table(store: Store, settings: Settings, kind: str, wanted: ListFilter) -> Rows:
    """Return the rows of one kind, at most `wanted.limit`."""
    return KINDS[kind](store, settings, wanted)[: wanted.limit]


def _workers(store: Store, settings: Settings, wanted: ListFilter) -> Rows:  # noqa: ARG001
    with store.snapshot() as tx:
        at = now(tx)
        return [worker(w, at) for w in operator_queries.workers(tx, wanted)]


def _claims(store: Store, settings: Settings, wanted: ListFilter) -> Rows:  # noqa: ARG001
    with store.snapshot() as tx:
        at = now(tx)
        found = operator_queries.live_claims(tx, org=wanted.org, limit=wanted.limit)
        origins = operator_queries.origins(tx, [c.request_pk for c in found])
        return [claim(c, at, origins.get(c.request_pk)) for c in found]


def _requests(store: Store, settings: Settings, wanted: ListFilter) -> Rows:  # noqa: ARG001
    with store.snapshot() as tx:
        at = now(tx)
        return [
            request(r, at) for r in operator_queries.open_requests(tx, org=wanted.org, limit=wanted.limit)
        ]


def _orgs(store: Store, settings: Settings, wanted: ListFilter) -> Rows:  # noqa: ARG001
    with store.snapshot() as tx:
        held, parked = orgs.live_claims(tx), operator_queries.parked_by_org(tx)
        return [
            org(o, in_use=held.get(o.id, 0), parked=parked.get(o.id, 0))
            for o in orgs.every(tx)
            if wanted.org in {"", o.id}
        ]


def _profiles(store: Store, settings: Settings, wanted: ListFilter) -> Rows:
    seen = status(store, settings)["profiles"]
    shapes = settings.profiles
    return [
        {
            "name": name,
            **p,
            "image": shapes[name].image if name in shapes else None,
            "cpu_millicores": shapes[name].cpu_millicores if name in shapes else None,
            "memory_mib": shapes[name].memory_mib if name in shapes else None,
            "revision": revision(shapes[name]) if name in shapes else None,
            "configured": name in shapes,
            "configured_target": shapes[name].warm_target if name in shapes else None,
        }
        for name, p in seen.items()
        if wanted.profile in {"", name}
    ]


def _passes(store: Store, settings: Settings, wanted: ListFilter) -> Rows:  # noqa: ARG001
    return [{"name": name, **p} for name, p in status(store, settings)["passes"].items()]


KINDS: dict[str, Callable[[Store, Settings, ListFilter], Rows]] = {
    "workers": _workers,
    "claims": _claims,
    "requests": _requests,
    "orgs": _orgs,
    "profiles": _profiles,
    "passes": _passes,
}
