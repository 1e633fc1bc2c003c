"""The command line, as a process and as a function."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from langgraph_durable import DurableSaver
from langgraph_durable.cli import main
from tests.checkpoints import checkpoint_with, config_for


def put_chain(saver: DurableSaver, thread_id: str, count: int) -> None:
    config: Any = config_for(thread_id)
    for step in range(count):
        checkpoint = checkpoint_with({"n": [step]})
        config = saver.put(config, checkpoint, {"step": step}, checkpoint["channel_versions"])


def remaining(saver: DurableSaver, thread_id: str) -> int:
    return sum(1 for _ in saver.list(config_for(thread_id)))


def test_prune_and_sweep(saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    for thread_id in ("a", "b", "c"):
        put_chain(saver, thread_id, 4)
    assert main(["prune", "a", "b", "--keep-last", "2", "--dry-run", "--database", conninfo]) == 0
    told = capsys.readouterr()
    assert "would remove 8 rows" in told.out
    assert "2 of 2 threads" in told.err
    assert remaining(saver, "a") == 4
    assert main(["prune", "a", "--database", conninfo]) == 0
    assert "removed 6 rows" in capsys.readouterr().out
    assert (remaining(saver, "a"), remaining(saver, "b")) == (1, 4)
    assert main(["sweep", "--older-than", "30d", "--database", conninfo]) == 0
    assert "removed 0 rows" in capsys.readouterr().out
    assert main(["sweep", "--keep-last", "1", "--after", "b", "--database", conninfo]) == 0
    told = capsys.readouterr()
    assert "removed 6 rows" in told.out
    assert "from 1 of 1 threads" in told.out
    assert (remaining(saver, "b"), remaining(saver, "c")) == (4, 1)


def test_setup_and_schema(empty_conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--verify-only", "--database", empty_conninfo]) == 1
    assert "SchemaOutOfDate" in capsys.readouterr().err
    assert main(["setup", "--database", empty_conninfo, "--schema", "mine"]) == 0
    assert main(["setup", "--verify-only", "--database", empty_conninfo, "--schema", "mine"]) == 0
    assert main(["schema", "--schema", "mine"]) == 0
    assert 'CREATE TABLE "mine".checkpoints' in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["prune"], ["sweep", "--older-than", "3"], ["nothing"], ["prune", "a", "--keep-last", "x"]],
)
def test_what_is_no_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_errors_are_told_without_a_traceback(conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["sweep"], ["prune", "a", "--keep-last", "-1"]):
        assert main([*arguments, "--database", conninfo]) == 1
        assert capsys.readouterr().err.startswith("InvalidConfig: ")
    assert main(["setup", "--database", "nonsense"]) == 1


def test_as_a_process(conninfo: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "langgraph_durable", "setup"],
        env=os.environ | {"DATABASE_URL": conninfo},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "schema 'langgraph_durable' is current\n"
    piped = f"{sys.executable} -m langgraph_durable schema | head -1"
    ended = subprocess.run(["sh", "-c", piped], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    assert ended.stdout.startswith("--")
