"""`make demo` shows what it is about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
