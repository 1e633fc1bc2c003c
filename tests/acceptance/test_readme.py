"""The README's code runs, in order, as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readmes_code_runs(empty_conninfo: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) >= 5
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks))
    ended = subprocess.run(
        [sys.executable, "-X", "dev", str(program)],
        env=os.environ | {"DATABASE_URL": empty_conninfo, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    first, second, freed, waiting, phases = ended.stdout.splitlines()
    assert (first, second) == ("Message 1, noted.", "Message 3, noted.")
    assert freed.endswith(" bytes could go")
    assert waiting == "0 effects wait for a decision"
    assert phases == "['step', 'ended']"  # all that compaction has left


@pytest.mark.parametrize(
    "command", ["make demo", "make test", "make check", "make bench", "make soak", "make help"]
)
def test_the_commands_exist(command: str) -> None:
    target = command.removeprefix("make ")
    assert re.search(rf"^{target}:.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    if target != "help":
        assert command in (ROOT / "README.md").read_text()


def test_the_demo_tells_its_story(empty_conninfo: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        env=os.environ | {"DATABASE_URL": empty_conninfo, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for line in (
        "killed with SIGKILL",
        "paid 2 times",
        "asks the provider whether the earlier attempt took place: True",
        "paid 1 time\n",
        "waits for a human: Did send_receipt take place?",
        "e-mails sent: 1",
        "tool ended      send_receipt completed",
    ):
        assert line in ended.stdout, ended.stdout
