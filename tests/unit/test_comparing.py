"""Rows compared with pods: what a sweep finds in the differences, and when a guard may skip a pod."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pool.core.ids import ClaimId, OrgId, WorkerId
from pool.core.states import CLAIMED, LIVE, State
from pool.drivers.port import (
    LABEL_BUSY,
    NOTE_CLAIM,
    NOTE_DO_NOT_DISRUPT,
    NOTE_EPOCH,
    NOTE_ORG,
    NOTE_SAFE_TO_EVICT,
    Listing,
    ObservedPods,
    Pod,
    PodPhase,
    Stamp,
    signature,
)
from pool.lifecycle import stamping
from pool.passes.sweep_orphans import compared
from pool.store.row_scans import ScannedRow

WORDS = st.sampled_from([None, "true", "false", "0", "1", "7", "acme", "c-1"])
NOTES = (NOTE_EPOCH, NOTE_CLAIM, NOTE_ORG, NOTE_DO_NOT_DISRUPT, NOTE_SAFE_TO_EVICT)


def a_pod(name: str = "w-1", **changes: object) -> Pod:
    pod = Pod(
        name=name, uid=f"uid-{name}", version="1", phase=PodPhase.RUNNING, ready=True, terminating=False
    )
    return replace(pod, **changes)  # type: ignore[arg-type]


def a_row(name: str = "w-1", state: State = State.IDLE, uid: str | None = "") -> ScannedRow:
    return ScannedRow(WorkerId(name), state, 0, None, None, f"uid-{name}" if uid == "" else uid)


@st.composite
def rows(draw: st.DrawFn) -> ScannedRow:
    state = draw(st.sampled_from([State.IDLE, State.HOT, State.HOT_IDLE, State.ACTIVATING]))
    held = state in CLAIMED
    org = OrgId(draw(st.sampled_from(["acme", "other"]))) if held or state is State.HOT_IDLE else None
    claim = ClaimId(draw(st.sampled_from(["c-1", "c-2"]))) if held else None
    return ScannedRow(WorkerId("w-1"), state, draw(st.sampled_from([0, 1, 7])), org, claim, "uid-w-1")


@st.composite
def marked_pods(draw: st.DrawFn) -> Pod:
    busy = draw(WORDS)
    notes = {key: value for key in NOTES if (value := draw(WORDS)) is not None}
    return a_pod(labels={} if busy is None else {LABEL_BUSY: busy}, annotations=notes)


@given(row=rows(), pod=marked_pods())
def test_the_guard_skips_only_pods_that_match_their_row(row: ScannedRow, pod: Pod) -> None:
    """Whatever is written on it."""
    if stamping.agrees(row, pod):
        assert not stamping.is_due(row, pod)


@given(row=rows())
def test_the_guard_skips_every_pod_that_was_stamped_for_its_row(row: ScannedRow) -> None:
    wanted = stamping.wanted(row)
    labels = {k: v for k, v in wanted.labels().items() if v is not None}
    notes = {k: v for k, v in wanted.annotations().items() if v is not None}
    assert stamping.agrees(row, a_pod(labels=labels, annotations=notes))


@given(row=rows(), word=WORDS, place=st.integers(0, len(NOTES)))
def test_the_guard_checks_a_pod_again_if_any_stamped_field_differs(
    row: ScannedRow, word: str | None, place: int
) -> None:
    stamp = stamping.wanted(row)
    marks: list[dict[str, str | None]] = [{**stamp.labels()}, {NOTE_ORG: row.org, **stamp.annotations()}]
    marks[place > 0][(LABEL_BUSY, *NOTES)[place]] = word
    labels, notes = ({k: v for k, v in some.items() if v is not None} for some in marks)
    pod = a_pod(labels=labels, annotations=notes)
    assert stamping.agrees(row, pod) == (
        not stamping.is_due(row, pod) and pod.annotations.get(NOTE_ORG) == row.org
    )


def test_a_signature_depends_on_each_part_of_a_stamp() -> None:
    stamps = [
        Stamp(org=org, claim_id=claim, epoch=epoch, busy=busy)
        for org in (None, "acme")
        for claim in (None, "c-1")
        for epoch in (0, 1)
        for busy in (False, True)
    ]
    told = {signature(busy=s.busy, epoch=s.epoch, claim_id=s.claim_id, org=s.org) for s in stamps}
    assert len(told) == len(stamps)


def test_pods_that_match_their_rows_are_left_alone() -> None:
    names = [f"w-{n}" for n in range(5)]
    found = compared({n: a_pod(n) for n in names}, map(a_row, names))
    assert (found.expecting, found.missing, found.unowned) == (True, [], [])


def test_a_row_without_a_pod_is_reported_exactly_if_it_expects_one() -> None:
    for state in LIVE:
        for uid in (None, "uid-other"):
            found = compared({}, [a_row(state=state, uid=uid)])
            slot_with_pod = state is State.SPAWNING and uid is not None
            expects = slot_with_pod or state not in {State.SPAWNING, State.DRAINING}
            assert (found.expecting, found.missing) == (expects, ["w-1"] if expects else []), (state, uid)


def test_a_pod_is_an_orphan_without_a_live_row_or_if_the_row_has_another_uid() -> None:
    strange, replaced, slot = a_pod("w-strange"), a_pod("w-replaced"), a_pod("w-slot")
    going = a_pod("w-going", terminating=True)
    pods = {p.name: p for p in (strange, replaced, slot, going)}
    found = compared(pods, [a_row("w-replaced", uid="uid-before"), a_row("w-slot", State.SPAWNING, uid=None)])
    assert [p.name for p in found.unowned] == ["w-strange", "w-replaced"]
    assert found.missing == ["w-replaced"]


@given(st.permutations(["w-3", "w-1", "w-2"]))
def test_rows_without_pods_are_ordered_independently_of_the_read_order(names: list[str]) -> None:
    """A limit takes the first of them; a suspicion must find the same ones again."""
    assert compared({}, map(a_row, names)).missing == ["w-1", "w-2", "w-3"]


def test_a_listing_computes_ages_only_for_the_pods_that_are_read() -> None:
    asked: list[str] = []

    def aged(pod: Pod) -> Pod:
        asked.append(pod.name)
        return replace(pod, age_s=60.0)

    listing = Listing(pods=ObservedPods({"w-1": a_pod("w-1"), "w-2": a_pod("w-2")}, aged), anchored=False)
    assert [*listing.named()] == ["w-1", "w-2"]
    assert asked == []
    assert listing.aged(listing.named()["w-2"]).age_s == 60.0
    assert asked == ["w-2"]
    assert [p.age_s for p in listing.pods] == [60.0, 60.0]
    assert len(listing.pods) == 2
    assert listing.pods[1].name == "w-2"
    assert Listing(pods=ObservedPods({}, aged), anchored=False).pods == ()


def test_a_listing_of_plain_pods_returns_them_unchanged() -> None:
    pod = a_pod(age_s=5.0)
    listing = Listing(pods=(pod,), anchored=True)
    assert listing.named() == {"w-1": pod}
    assert listing.aged(pod) is pod
