"""Each example runs twice on one server, and prints what it demonstrates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPECTED_OUTPUT = {
    "first_graph": [
        "human: Hello",
        "ai: That is message 1.",
        "human: Still there?",
        "ai: That is message 3.",
    ],
    "async_graph": ["20 orders ran concurrently; the last: order-19: cooked, served"],
    "interrupts": ["Pay 80 EUR for train?", "answered: True", "answered: False", "still waiting: 0"],
    "time_travel": [
        "replayed: ['Paris', 'Lyon after Paris', 'Nice after Lyon after Paris']",
        "forked:   ['Paris', 'Lyon after Paris', 'Turin', 'Nice after Turin']",
        "original: ['Paris', 'Lyon after Paris', 'Nice after Lyon after Paris']",
    ],
    "retention": ["it removed 28 checkpoints", "messages left: 20", "deleted retention-copy: "],
    "encryption": [
        "with the key: the code is 4711",
        "0 of them with the secret",
        "without the key: CheckpointCorruptedError",
    ],
    "effect_verify": [
        "the run failed: ",
        "run again, the tool returned: INV-7: 4200 cents",
        "charges at the provider: 1",
    ],
    "effect_retry": [
        "attempt 1 of INV-7",
        "the run failed: ",
        "attempt 2 of INV-7",
        "run again: receipt 1 for INV-7",
        "payments: 1",
    ],
    "own_pool": ["reply: That is message 1.", "statement_timeout: 10s"],
    "effect_ask": [
        "a human gets the question: Did send take place? {'to': 'ann@example.org'}",
        "mails sent: 1",
        "unknown -> completed, by human",
    ],
    "middleware": [
        "the run failed: ",
        "run again, the agent says: Done: charged INV-7.",
        "charges: 1",
    ],
    "telemetry": [
        "put, child of request: ok",
        "put_writes, child of request: ok",
        "get_tuple, no parent: InvalidConfigError",
        "puts: 6",
    ],
    "fastapi_app": ["That is message 1.", "That is message 3."],
    "transaction": [
        "run again: 12A is Ann's",
        "requested again: replayed: 12A is Ann's",
        "rows: [('12A', 'Ann')]",
    ],
}
"""Example -> lines that its output contains."""

NEEDS = {"fastapi_app": "fastapi"}
"""Example -> a package of a dependency group that is not always installed."""


def test_every_example_is_tested() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == {*EXPECTED_OUTPUT, "demo"}  # test_readme.py runs the demo


@pytest.mark.parametrize("name", EXPECTED_OUTPUT)
def test_example_prints_expected_output(name: str, empty_conninfo: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed: make agent-server")
    for _ in range(2):  # the second run finds the threads of the first one
        ended = subprocess.run(
            [sys.executable, "-X", "dev", str(ROOT / "examples" / f"{name}.py")],
            env=os.environ | {"DATABASE_URL": empty_conninfo, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        for line in EXPECTED_OUTPUT[name]:
            assert line in ended.stdout, ended.stdout
