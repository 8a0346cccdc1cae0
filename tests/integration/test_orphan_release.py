"""An operator releases an orphan that cannot be queried: the next sweep deletes it, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pool.core.errors import PoolError
from pool.core.states import State
from pool.drivers.port import PodSpec, Stamp, Word
from pool.ops import operating, reporting
from pool.ops.cli import app as root
from pool.ops.operating import Operator
from pool.store import Store, audit, schema
from tests.support.world import World

ALICE = Operator(name="alice", way="cli", why="its node is dead")
NAME = "w-orphan"


@pytest.fixture
def silent(world: World) -> World:
    """A pool with an old stamped orphan that answers nothing, and that is held."""
    world.warm(1)
    world.driver.create(
        PodSpec(
            name=NAME, profile="default", revision="r", image="i", cpu_millicores=1, memory_mib=1, port=1, grace_s=1,
        )
    )  # fmt: skip
    world.driver.become_ready(NAME)
    world.driver.change(NAME, age_s=1000)
    world.driver.stamp(world.driver.pods[NAME], Stamp(org="acme", claim_id="c", epoch=1, busy=True))
    world.driver.words[NAME] = Word.SILENT
    sweep(world, 3)
    assert kept(world)
    return world


def sweep(world: World, times: int = 1) -> None:
    for _ in range(times):
        assert world.run_pass("sweep_orphans")["outcome"] == "ok"


def kept(world: World) -> bool:
    """Whether its end was not asked for: a pod that does not answer has its grace."""
    return NAME in world.driver.pods and not world.driver.pods[NAME].terminating


def worries(world: World) -> list[str]:
    found = reporting.status(world.store, world.deps.settings)["worries"]
    return [w["text"] for w in found if w["id"].startswith("orphan:")]


def entries(world: World) -> list[tuple[str, str, str]]:
    with world.store.read() as tx:
        return [(e.what, e.who, e.why) for e in audit.of(tx, NAME)]


def test_released_orphan_is_deleted_by_the_next_sweep_and_the_audit_names_the_operator(silent: World) -> None:
    assert worries(silent) == [
        "pod w-orphan has no row and is silent: kept; to delete it: warmpool orphan delete w-orphan"
    ]
    operating.release_orphan(silent.store, NAME, ALICE)
    sweep(silent)
    assert not kept(silent)
    released, deleted = entries(silent)
    assert released == ("orphan_released", "alice (cli)", "its pod may be deleted: its node is dead")
    assert deleted[0] == "orphan_deleted"
    assert "alice (cli)" in deleted[2]
    sweep(silent)
    assert worries(silent) == []
    assert not [r for r in silent.rows("suspects") if NAME in r.subject]


def test_released_orphan_that_reports_a_session_is_kept(silent: World) -> None:
    operating.release_orphan(silent.store, NAME, ALICE)
    silent.driver.words[NAME] = Word.BUSY
    sweep(silent)
    assert kept(silent)
    silent.driver.words[NAME] = Word.SILENT
    sweep(silent, 2)
    assert kept(silent), "its report ended the release"


def test_orphan_that_reports_a_session_cannot_be_released(silent: World) -> None:
    silent.driver.words[NAME] = Word.BUSY
    sweep(silent)
    with pytest.raises(PoolError, match="w-orphan: it reports an open session"):
        operating.release_orphan(silent.store, NAME, ALICE)
    assert entries(silent) == []


def test_pod_that_is_not_held_cannot_be_released(silent: World) -> None:
    (idle,) = [w.id for w in silent.workers(State.IDLE)]
    for name, refusal in ((idle, "it has a live row, which is idle"), ("w-none", "not a held orphan")):
        with pytest.raises(PoolError, match=refusal):
            operating.release_orphan(silent.store, name, ALICE)
    sweep(silent, 2)
    assert kept(silent)
    assert idle in silent.driver.pods


def test_held_pod_whose_name_has_a_live_row_cannot_be_released(silent: World) -> None:
    with silent.store.write() as tx:
        (worker,) = silent.workers(State.IDLE)
        tx.execute(
            schema.suspects.update()
            .where(schema.suspects.c.subject.startswith(NAME))
            .values(subject=f"{worker.id}/u")
        )
    with pytest.raises(PoolError, match="it has a live row, which is idle"):
        operating.release_orphan(silent.store, worker.id, ALICE)


def test_release_applies_to_one_pod_and_not_to_a_later_one_of_its_name(silent: World) -> None:
    operating.release_orphan(silent.store, NAME, ALICE)
    silent.driver.change(NAME, uid="another")
    sweep(silent, 3)
    assert kept(silent)


def test_command_asks_for_confirmation_unless_it_is_given(
    silent: World,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("WARMPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARMPOOL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WARMPOOL_DATABASE_URL", store.engine.url.render_as_string(hide_password=False))
    assert run("orphan", "list") == 0
    assert NAME in capsys.readouterr().out
    assert run("orphan", "delete", NAME) == 1
    assert "add --yes to confirm" in capsys.readouterr().err
    assert entries(silent) == []
    assert run("orphan", "delete", "w-none", "--yes") == 1
    assert "w-none: it is not a held orphan" in capsys.readouterr().err
    assert run("orphan", "delete", NAME, "--yes", "--why", "node is dead") == 0
    assert "the next run of sweep_orphans deletes it" in capsys.readouterr().out
    (entry,) = entries(silent)
    assert entry[0] == "orphan_released"
    assert entry[2].endswith("node is dead")
    sweep(silent)
    assert not kept(silent)


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        root.main(argv)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code
