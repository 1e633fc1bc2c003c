"""What mypy and pyright see of the public names: effect_types.py says what."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import pytest
from typing_extensions import get_overloads

from langgraph_durable import EffectPolicy, effect
from langgraph_durable.effects.policy import PolicyFields

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).with_name("effect_types.py")
EXPECTED = re.compile(
    r"^reveal_type\(.*\)\n# pyright sees (?P<pyright>.*)\n# mypy sees (?P<mypy>.*)$", re.MULTILINE
)


def expected(checker: str) -> dict[int, str]:
    """Line -> the revealed type."""
    text = CASES.read_text(encoding="utf-8")
    return {text.count("\n", 0, m.start()) + 1: m[checker] for m in EXPECTED.finditer(text)}


def test_pyright_sees_the_types() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(run.stdout)["generalDiagnostics"]
    assert [d for d in found if d["severity"] != "information"] == []
    revealed = {
        d["range"]["start"]["line"] + 1: re.sub(r'^Type of "\w+" is "(.*)"$', r"\1", d["message"])
        for d in found
    }
    assert revealed == expected("pyright") != {}


def test_mypy_sees_the_types() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-color-output", "--no-error-summary", str(CASES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("tests/typing/effect_types.py:")]
    assert [line for line in lines if ": error:" in line] == []
    assert run.returncode == 0, run.stdout + run.stderr
    revealed = re.findall(r':(\d+): note: Revealed type is "(.*)"', "\n".join(lines))
    assert {int(number): _short(text) for number, text in revealed} == expected("mypy") != {}


def _short(text: str) -> str:
    return text.replace("builtins.", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not keep overloads")
def test_effect_has_each_field_of_the_policy_as_a_keyword() -> None:
    names = [field.name for field in fields(EffectPolicy)]
    assert list(inspect.signature(EffectPolicy).parameters) == names
    assert list(PolicyFields.__annotations__) == names
    _, with_keywords = get_overloads(effect)
    keywords = inspect.signature(with_keywords).parameters
    assert list(keywords) == [*names, "policy", "key", "log", "name"]
    hints = typing.get_type_hints(with_keywords)
    constructor = typing.get_type_hints(EffectPolicy.__init__)
    in_replace = typing.get_type_hints(PolicyFields)
    assert {name: hints[name] for name in names} == {name: constructor[name] for name in names} == in_replace
