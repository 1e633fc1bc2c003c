"""The command line, as a process and as a function."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from langgraph_durable import DurableSaver
from langgraph_durable.cli.main import main
from tests.checkpoints import checkpoint_with, config_for


def put_chain(saver: DurableSaver, thread_id: str, count: int) -> None:
    config: Any = config_for(thread_id)
    for step in range(count):
        checkpoint = checkpoint_with({"n": [step]})
        config = saver.put(config, checkpoint, {"step": step}, checkpoint["channel_versions"])


def remaining(saver: DurableSaver, thread_id: str) -> int:
    return sum(1 for _ in saver.list(config_for(thread_id)))


def test_prune_and_prune_all_remove_and_report(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for thread_id in ("a", "b", "c"):
        put_chain(saver, thread_id, 4)
    assert main(["prune", "a", "b", "--keep-last", "2", "--dry-run", "--database", conninfo]) == 0
    printed = capsys.readouterr()
    assert "would remove 8 rows" in printed.out
    assert "2 of 2 threads" in printed.err
    assert remaining(saver, "a") == 4
    assert main(["prune", "a", "--database", conninfo]) == 0
    assert "removed 6 rows" in capsys.readouterr().out
    assert (remaining(saver, "a"), remaining(saver, "b")) == (1, 4)
    assert main(["prune-all", "--older-than", "30d", "--database", conninfo]) == 0
    assert "removed 0 rows" in capsys.readouterr().out
    assert main(["prune-all", "--keep-last", "1", "--after", "b", "--database", conninfo]) == 0
    printed = capsys.readouterr()
    assert "removed 6 rows" in printed.out
    assert "from 1 of 1 threads" in printed.out
    assert (remaining(saver, "b"), remaining(saver, "c")) == (4, 1)


def test_stats_count_rows_and_bytes(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "so it goes, and so on, " * 40
    config: Any = config_for("long")
    for length in range(20, 60):
        checkpoint = checkpoint_with({"messages": [f"{i} {text}" for i in range(length)]})
        config = saver.put(config, checkpoint, {"step": length}, checkpoint["channel_versions"])
        saver.put_writes(config, [("messages", [text * 10])], "task")
    put_chain(saver, "short", 2)
    logical = sum(len(saver.serde.dumps_typed([f"{i} {text}" for i in range(n)])[1]) for n in range(20, 60))
    stats = saver.storage_stats("long")
    assert {name: table.rows for name, table in stats.tables.items()} == {
        "checkpoints": 40,
        "ancestors": 0,
        "channel_values": 40,
        "segments": stats.tables["segments"].rows,
        "writes": 40,
    }
    assert 10 < stats.tables["segments"].rows < 80
    written = 40 * len(saver.serde.dumps_typed([text * 10])[1])
    assert 0 <= stats.logical_bytes - logical - written < 40 * 600
    assert stats.ratio == stats.total_bytes / stats.logical_bytes < 0.1
    assert saver.storage_stats().logical_bytes > stats.logical_bytes
    assert saver.storage_stats().tables["checkpoints"].rows == 42
    nothing = saver.storage_stats("unknown")
    assert (nothing.total_rows, nothing.total_bytes, nothing.logical_bytes, nothing.ratio) == (0, 0, 0, 1.0)

    assert main(["stats", "--database", conninfo]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == [
        "table", "checkpoints", "ancestors", "channel_values", "segments", "writes", "total", "every",
    ]  # fmt: skip
    assert main(["stats", "--thread", "long", "--json", "--database", conninfo]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["thread_id"] == "long"
    assert record["tables"]["channel_values"]["rows"] == 40
    assert record["logical_bytes"] == stats.logical_bytes


async def test_stats_of_encrypted_values_async(conninfo: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    async with DurableSaver.from_conn_string(conninfo, serde=serde, segment_key=b"k" * 16) as saver:
        checkpoint = checkpoint_with({"messages": ["x" * 900] * 100})
        await saver.aput(config_for("t"), checkpoint, {"step": 0}, checkpoint["channel_versions"])
        assert (await saver.astorage_stats("t")).tables["segments"].rows > 0
        assert 90_000 < (await saver.astorage_stats()).logical_bytes < 92_000


def test_setup_creates_the_tables_and_schema_prints_them(
    empty_conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", "--verify-only", "--database", empty_conninfo]) == 1
    assert "SchemaOutOfDateError" in capsys.readouterr().err
    assert main(["setup", "--database", empty_conninfo, "--schema", "mine"]) == 0
    assert main(["setup", "--verify-only", "--database", empty_conninfo, "--schema", "mine"]) == 0
    assert main(["schema", "--schema", "mine"]) == 0
    assert 'CREATE TABLE "mine".checkpoints' in capsys.readouterr().out
    assert main(["schema", "--from-version", "1"]) == 0
    printed = capsys.readouterr().out
    assert 'CREATE TABLE "langgraph_durable".checkpoints' not in printed
    assert "CREATE TABLE" in printed
    assert main(["schema", "--from-version", "99"]) == 1
    assert "from_version must be a migration of this package, 1 to " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["prune"], ["prune-all", "--older-than", "3"], ["nothing"], ["prune", "a", "--keep-last", "x"]],
)
def test_invalid_arguments_exit_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_errors_are_printed_without_a_traceback(conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["prune-all"], ["prune", "a", "--keep-last", "-1"]):
        assert main([*arguments, "--database", conninfo]) == 1
        assert capsys.readouterr().err.startswith("InvalidConfigError: ")
    assert main(["setup", "--database", "nonsense"]) == 1


def test_missing_options_are_named_as_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (None, ""):
        monkeypatch.delenv("DATABASE_URL", raising=False)
        if url is not None:
            monkeypatch.setenv("DATABASE_URL", url)
        assert main(["stats"]) == 1
        assert (
            capsys.readouterr().err
            == "InvalidConfigError: no database: pass --database CONNINFO, or set DATABASE_URL\n"
        )
    assert main(["prune-all", "--database", "host=nowhere"]) == 1
    assert "pass --older-than AGE" in capsys.readouterr().err
    assert main(["schema", "--schema", ""]) == 1
    assert "schema must name a database schema" in capsys.readouterr().err


def test_ages_of_any_length(saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]) -> None:
    put_chain(saver, "a", 3)
    assert main(["prune", "a", "--older-than", "999999999d", "--database", conninfo]) == 0
    assert "removed 0 rows" in capsys.readouterr().out
    for digits in (20, 5000):
        with pytest.raises(SystemExit) as ended:
            main(["prune", "a", "--older-than", f"{'9' * digits}d", "--database", conninfo])
        assert ended.value.code == 2
        assert "is too long an age" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["prune", "prune-all", "stats", "timeline", "interrupts", "schema", "setup"]
)
def test_help_says_what_a_command_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    helps = []
    for arguments in (["--help"], [command, "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
        helps.append(" ".join(capsys.readouterr().out.split()))
    listed, own = helps
    described = re.search(rf" {command} (\w+ \w+ \w+)", listed)
    assert described is not None
    assert described[1] in own


def test_module_runs_as_a_process(conninfo: str) -> None:
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


# What the console script of an installed package runs.
SCRIPT = "import sys; from langgraph_durable.cli.main import main; sys.exit(main())"


@pytest.mark.parametrize("entry", [["-m", "langgraph_durable"], ["-c", SCRIPT]], ids=["module", "script"])
def test_text_that_the_terminal_cannot_encode_is_escaped(conninfo: str, entry: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, *entry, "timeline", "caf\u00e9", "--database", conninfo],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("nothing is stored for thread 'caf\\xe9'\n", "")


def test_usage_names_the_console_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith("usage: langgraph-durable ")
    scripts = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'langgraph-durable = "langgraph_durable.cli.main:main"' in scripts


@pytest.mark.parametrize(
    ("decision", "state"),
    [
        ("happened", "completed"),
        ("not_happened", "failed"),
        ("not-happened", "failed"),
        ("retry", "failed"),
        ("abandon", "abandoned"),
    ],
)
def test_resolve_accepts_the_decisions(
    saver: DurableSaver,
    conninfo: str,
    capsys: pytest.CaptureFixture[str],
    decision: str,
    state: str,
) -> None:
    with pytest.raises(TimeoutError), saver.effects.effect("send", key="k") as e:
        e.issue()
        raise TimeoutError
    [pending] = saver.effects.pending()
    assert main(["effects", "resolve", pending.effect_id, decision, "--database", conninfo]) == 0
    assert capsys.readouterr().out.startswith(f"effect {pending.effect_id} is {state}. Run the graph again")
    assert saver.effects.pending() == []


def test_resolve_needs_force_while_the_owner_is_alive(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with saver.effects.effect("send", key="k") as e:
        command = ["effects", "resolve", e.effect_id, "happened", "--result", "1", "--database", conninfo]
        assert main(command) == 1
        assert "--force" in capsys.readouterr().err
        assert main([*command, "--force"]) == 0
        e.complete(2)
        assert e.result == 1


def test_resolve_gives_a_lost_result(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saver.effects.run("send", key="k", body=threading.Lock)
    [record] = saver.effects.list()
    assert (
        main(
            ["effects", "resolve", record.effect_id, "happened", "--result", '"sent"', "--database", conninfo]
        )
        == 0
    )
    given: Any = saver.effects.run("send", key="k", body=threading.Lock)
    assert given == "sent"
    assert main(["effects", "resolve", record.effect_id, "failed", "--database", conninfo]) == 1
    assert "needs no decision" in capsys.readouterr().err


def test_keyboard_interrupt_exits_with_status_130(
    conninfo: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DurableSaver, "prune_all", interrupted)
    assert main(["prune-all", "--keep-last", "1", "--database", conninfo]) == 130
    assert capsys.readouterr().err == ""
