"""What pyproject.toml claims is what `make oldest` tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOOR = re.compile(r'"([a-z-]+)(?:\[\w+\])?>=([\d.]+)')


def padded(version: str) -> str:
    return ".".join([*version.split("."), "0", "0"][:3])


def test_the_oldest_versions_are_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = text[text.index("dependencies = [") : text.index("[project.optional-dependencies]")]
    claimed = {name: padded(version) for name, version in FLOOR.findall(dependencies)}
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    assert len(claimed) == 6
    assert claimed.items() <= tested.items()
