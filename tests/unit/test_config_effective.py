"""The effective values of empty settings."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pool import config
from pool.config import effective
from pool.core.errors import PoolError
from pool.core.settings import PoolSettings, Settings


def at(path: Path, **pool: str) -> Settings:
    return Settings(pool=PoolSettings(data_dir=str(path), **pool))  # type: ignore[arg-type]


def test_the_database_is_the_setting_else_what_the_embedded_server_wrote(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "database.url").write_text("postgresql://u@h/embedded\n")
    assert config.database_url(at(tmp_path)) == "postgresql://u@h/embedded"
    assert config.database_url(at(tmp_path, database_url="postgresql://u@h/d")) == "postgresql://u@h/d"


def test_without_any_database_the_error_explains_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        PoolError, match="no database is configured: set database_url, or start one with `warmpool up`"
    ):
        config.database_url(at(tmp_path))


def test_the_broker_is_the_setting_else_what_the_embedded_server_wrote(tmp_path: Path) -> None:
    assert config.broker_url(at(tmp_path, broker_url="redis://h:1/0")) == "redis://h:1/0"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "broker.url").write_text("redis://127.0.0.1:7/0\n")
    assert config.broker_url(at(tmp_path)) == "redis://127.0.0.1:7/0"


def test_without_any_broker_the_error_explains_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        PoolError, match="no broker is configured: set broker_url, or start one with `warmpool up`"
    ):
        config.broker_url(at(tmp_path))


def test_the_master_key_is_generated_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "data"
    key = config.master_key(at(home))
    assert config.master_key(at(home)) == key
    file = home / "master.key"
    assert len(bytes.fromhex(file.read_text())) == 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in home.iterdir()] == ["master.key"]


def test_a_key_file_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    key = config.master_key(at(tmp_path))
    file = tmp_path / "master.key"
    file.chmod(0o644)
    assert config.master_key(at(tmp_path)) == key
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_key_that_is_moved_into_the_setting_stays_the_same_key(tmp_path: Path) -> None:
    key = config.master_key(at(tmp_path))
    assert config.master_key(at(tmp_path / "other", master_key=(tmp_path / "master.key").read_text())) == key


def test_the_loser_of_the_race_for_the_master_key_uses_the_winners_key(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    effective._make_key(file)
    first = file.read_text()
    effective._make_key(file)
    assert file.read_text() == first
    assert list(tmp_path.iterdir()) == [file]


def test_processes_that_start_together_use_one_master_key(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def ask() -> bytes:
        together.wait()
        return config.master_key(at(tmp_path))

    with ThreadPoolExecutor(8) as crowd:
        keys = {future.result() for future in [crowd.submit(ask) for _ in range(8)]}
    assert len(keys) == 1


def test_a_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "master.key").write_text("short\n")
    with pytest.raises(PoolError, match="is not a valid master key"):
        config.master_key(at(tmp_path))


def test_a_data_dir_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PoolError, match=r"cannot create data_dir .*/file/data"):
        config.master_key(at(tmp_path / "file" / "data"))
