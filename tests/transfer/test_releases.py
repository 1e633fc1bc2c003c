"""Databases that releases of langgraph-checkpoint-postgres wrote, each installed in a separate environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver

from langgraph_durable import DurableSaver
from langgraph_durable.cli.main import main
from tests.conftest import Databases
from tests.transfer import threads

RELEASES = {
    # langgraph-checkpoint-postgres -> the LangGraph of its time
    "2.0.21": "langgraph==0.4.8",
    "2.0.25": "langgraph==0.6.11",
    "3.0.5": "langgraph==1.0.10",
    "3.2.0": "langgraph==1.2.22",
}
COUNT = 250
"""Threads of each release."""
SECONDS = 600


def installed(directory: Path, release: str) -> Path:
    """Return the interpreter of an environment with a release; skip the test if the index cannot be reached."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=SECONDS)
    python = directory / "bin" / "python"
    packages = [f"langgraph-checkpoint-postgres=={release}", RELEASES[release], "psycopg[binary]"]
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *packages,
    ]
    try:
        done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not deliver {packages} within {SECONDS} s")
    if done.returncode:
        pytest.skip(f"{packages} cannot be installed from the package index: {done.stderr[-300:]}")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_threads_of_a_release_are_imported_and_go_on(
    saver: DurableSaver,
    conninfo: str,
    empty_conninfo: str,
    databases: Databases,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    release: str,
) -> None:
    python = installed(tmp_path / "environment", release)
    module = "import sys, threads; threads.main(*sys.argv[1:])"
    subprocess.run(
        [python, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, sys.argv.pop(1))\n{module}",
         Path(threads.__file__).parent, empty_conninfo, str(COUNT)],
        check=True, timeout=SECONDS,
    )  # fmt: skip
    found = names(empty_conninfo)
    assert len(found) == COUNT
    assert main(["import", "--database", conninfo, "--from", empty_conninfo, "--verify"]) == 0
    printed = capsys.readouterr().out
    assert f"imported {COUNT} threads: " in printed
    assert f" of {COUNT} threads: no differences" in printed
    print(release, printed)
    with PostgresSaver.from_conn_string(empty_conninfo) as source:
        source.setup()
        differing = [t for t in found if threads.go_on(saver, t) != threads.go_on(source, t)]
    assert differing == []


def names(conninfo: str) -> list[str]:
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1").fetchall()
    return [name for (name,) in rows]
