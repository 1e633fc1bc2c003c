"""Data directories and settings that cannot be used."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded import EmbeddedPostgres
from langgraph_durable.embedded.binaries import Account
from langgraph_durable.errors import EmbeddedPostgresError
from tests.integration.embedded.processes import Child, as_root, not_as_root, query_value, runs, until


def test_unusable_data_directory_is_refused_and_unchanged(base: Path, shared: EmbeddedPostgres) -> None:
    account = Account.choose()

    def refused(place: Path, message: str) -> None:
        before = sorted(base.rglob("*"))
        with pytest.raises(EmbeddedPostgresError, match=message):
            embedded.start(data_dir=place)
        assert sorted(base.rglob("*")) == before

    (base / "file").touch()
    refused(base / "file", r"not a directory\. Name another")
    refused(base / "missing" / "data", r"missing does not exist\. Create it")

    for name, files in {
        "full": {"thesis.tex": ""},
        "old": {"PG_VERSION": "9\n"},
        "foreign": {"PG_VERSION": shared.version.split(".")[0]},
    }.items():
        (base / name).mkdir()
        account.chown(base / name)
        for file, text in files.items():
            (base / name / file).write_text(text)
    refused(base / "full", r"neither empty nor a Postgres data directory\. Name another")
    refused(base / "old", "created by Postgres 9, .* LANGGRAPH_DURABLE_PG_BINDIR")
    refused(base / "foreign", "not created by this package.*DATABASE_URL")

    (base / "closed").mkdir()
    account.chown(base / "closed")
    (base / "closed").chmod(0o500)
    refused(base / "closed", r"writable\. Use chown and chmod")


def test_data_directory_of_a_killed_first_start_is_refused_with_advice(base: Path) -> None:
    place = base / "data"
    with Child(data_dir=str(place), fsync=False) as child:
        until((place / "PG_VERSION").exists)
        child.process.kill()
    with pytest.raises(EmbeddedPostgresError, match=r"its creation was interrupted\. Remove it"):
        embedded.start(data_dir=place)


@as_root
def test_data_directory_owned_by_root_is_refused(base: Path) -> None:
    account = Account.choose()
    (base / "of_root").mkdir()
    with pytest.raises(EmbeddedPostgresError, match=f"must belong to {account.name}.*chown"):
        embedded.start(data_dir=base / "of_root")
    (base / "closed").mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=f"Give {account.name} access to .*closed"):
        embedded.start(data_dir=base / "closed" / "data")
    assert list((base / "closed").iterdir()) == []


@not_as_root
def test_data_directory_in_a_read_only_parent_is_refused(base: Path) -> None:
    (base / "closed").mkdir(mode=0o500)
    with pytest.raises(EmbeddedPostgresError, match="name a directory elsewhere"):
        embedded.start(data_dir=base / "closed" / "data")


def test_failed_start_reports_the_log_and_leaves_nothing(base: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match='unrecognized configuration parameter "no_such"'):
        embedded.start(fsync=False, settings={"no_such": "1"})
    assert runs(base) == []
    with pytest.raises(EmbeddedPostgresError, match="max_connections"):
        embedded.start(data_dir=base / "data", fsync=False, settings={"max_connections": "-1"})
    assert runs(base) == []
    with embedded.start(
        data_dir=base / "data", fsync=False
    ) as server:  # the cluster that it created is usable
        assert query_value(server.conninfo(), "SELECT 1") == 1


def test_broken_cluster_is_reported_with_the_log(base: Path, shared: EmbeddedPostgres) -> None:
    (base / "data").mkdir(mode=0o700)
    for name, text in {
        "PG_VERSION": shared.version.split(".")[0],
        "langgraph_durable.password": "x",
    }.items():
        (base / "data" / name).write_text(text)
    for path in (base / "data", *(base / "data").iterdir()):
        Account.choose().chown(path)
    with pytest.raises(EmbeddedPostgresError, match=r"postgresql\.conf"):
        embedded.start(data_dir=base / "data")


def test_initdb_timeout_leaves_an_empty_data_directory(base: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"initdb took too long .* Raise timeout"):
        embedded.start(data_dir=base / "data", timeout=timedelta(0))
    assert runs(base) == []
    assert list((base / "data").iterdir()) == []
    with embedded.start(data_dir=base / "data", fsync=False) as server:  # an empty directory is usable
        assert query_value(server.conninfo(), "SELECT 1") == 1


def test_socket_is_not_placed_in_an_unsuitable_tmpdir(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("long" * 30, "with a space, and 'quotes'"):
        (base / name).mkdir()
        (base / name).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", str(base / name))
        with embedded.start(fsync=False) as server:
            assert server.data_dir.parents[1] == Path("/tmp")
            assert query_value(server.conninfo(), "SELECT 1") == 1
        assert not server.data_dir.parent.exists()
