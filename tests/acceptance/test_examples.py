"""Each example runs as a new user would run it, and shows what it is about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHOWN = {
    "first_graph": [
        "human: Hello",
        "ai: That is message 1.",
        "human: Still there?",
        "ai: That is message 3.",
    ],
    "async_graph": ["20 orders at once; the last: order-19: cooked, served"],
    "interrupts": ["Pay 80 EUR for train?", "answered: True", "answered: False", "still waiting: 0"],
    "time_travel": [
        "replayed: ['Paris', 'Lyon after Paris', 'Nice after Lyon after Paris']",
        "forked:   ['Paris', 'Lyon after Paris', 'Turin', 'Nice after Turin']",
        "as it was: ['Paris', 'Lyon after Paris', 'Nice after Lyon after Paris']",
    ],
    "retention": ["it removed 28 checkpoints", "messages that are left: 20", "erased retention-copy: "],
    "encryption": [
        "with the key: the code is 4711",
        "the secret in 0 of them",
        "without the key: cannot read the checkpoint",
    ],
    "effect_verify": [
        "the run failed: ",
        "run again, the tool said: INV-7: 4200 cents",
        "charges at the vendor: 1",
    ],
    "effect_ask": [
        "a human is asked: Did send take place? {'to': 'ann@example.org'}",
        "mails that were sent: 1",
        "unknown -> completed, by human",
    ],
    "middleware": [
        "the run failed: ",
        "run again, the agent says: Done: charged INV-7.",
        "charges: 1",
    ],
    "telemetry": [
        "put, in the trace of request: ok",
        "put_writes, in the trace of request: ok",
        "get_tuple, in the trace of nobody: InvalidConfigError",
        "puts: 6",
    ],
    "transaction": [
        "run again: 12A is Ann's",
        "and anew: found done: 12A is Ann's",
        "rows: [('12A', 'Ann')]",
    ],
}
"""Example -> what it says, among else."""


def test_every_example_is_tested() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert files == {*SHOWN, "demo"}  # the demo has a test of its own


@pytest.mark.parametrize("name", SHOWN)
def test_an_example(name: str, empty_conninfo: str) -> None:
    for _ in range(2):  # on a server of the user's own, the second time finds what the first one left
        ended = subprocess.run(
            [sys.executable, "-X", "dev", str(ROOT / "examples" / f"{name}.py")],
            env=os.environ | {"DATABASE_URL": empty_conninfo, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        for said in SHOWN[name]:
            assert said in ended.stdout, ended.stdout
