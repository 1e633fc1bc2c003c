"""A temporary directory for each test, and a server that tests only read."""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_durable import embedded
from langgraph_durable.embedded import EmbeddedPostgres
from tests.integration.embedded.processes import TMP, runs


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory like /tmp, where no test may leave a run directory."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("LANGGRAPH_DURABLE_PG_BINDIR", raising=False)
    path = Path(tempfile.mkdtemp(prefix="lgt-", dir=TMP))
    path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    gc.collect()
    left = runs(path)
    shutil.rmtree(path)
    assert left == []


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedPostgres]:
    """A server for tests that do not change it, from the binaries that are found by default."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("LANGGRAPH_DURABLE_PG_BINDIR", raising=False)
        server = embedded.start(settings={"work_mem": "5MB"})
    with server:
        yield server
