"""Each EffectError says what is known and how to go on, and links to its section of docs/errors.md."""

from __future__ import annotations

import ast
import inspect
import pickle
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest

import langgraph_durable
from langgraph_durable import EffectError, errors
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable.effects import DecisionWord
from langgraph_durable.effects._protocol import effect_errors
from langgraph_durable.effects._protocol.questions import DECISIONS
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.errors import EffectUnknownError
from tests.documentation.markdown import ROOT, anchors

PACKAGE = Path(langgraph_durable.__file__).parent
SECTIONS = anchors(ROOT / "docs" / "errors.md")
NOW = datetime.now(timezone.utc)
EFFECT_ID = uuid.uuid4()


def _row(state: Any = "unknown") -> EffectRow:
    values: dict[str, Any] = dict.fromkeys(EffectRow._fields)
    known = {
        "effect_id": EFFECT_ID,
        "tool": "charge",
        "state": state,
        "thread_id": "invoice-7",
        "attempts": 2,
    }
    times = {"first_attempt_at": NOW, "attempted_at": NOW, "lease_until": NOW, "now": NOW}
    return EffectRow(**values | known | times | {"owner": "host/1/abc", "error": "TimeoutError: no answer"})


BUILT: dict[str, Callable[[], EffectError]] = {
    "unknown": lambda: effect_errors.unknown(_row()),
    "verify failed": lambda: effect_errors.unknown(_row(), OSError("the provider is down")),
    "timed out": lambda: effect_errors.timed_out(_row(), timedelta(seconds=5)),
    "conflict": lambda: effect_errors.conflict(_row("completed")),
    "in flight": lambda: effect_errors.in_flight(_row("issued")),
    "abandoned": lambda: effect_errors.abandoned(_row("abandoned")),
    "declared failed": lambda: effect_errors.declared_failed(_row("failed")),
    "forked": lambda: effect_errors.forked(_row("completed")),
    "superseded": lambda: effect_errors.superseded(_row("issued"), "completed", _row("completed")),
    "gone": lambda: effect_errors.superseded(_row("issued"), "completed", None),
    "result lost": lambda: effect_errors.result_lost(_row("completed")),
    "result expired": lambda: effect_errors.result_expired(_row("completed")),
    "no decision": lambda: effect_errors.needs_no_decision(_row("issued")),
}


@pytest.mark.parametrize("build", BUILT.values(), ids=BUILT)
def test_an_error_about_an_effect_says_what_is_known_and_the_ways_on(
    build: Callable[[], EffectError],
) -> None:
    error = build()
    text, effect_id = str(error), format_ulid(EFFECT_ID)
    assert "'charge' of thread 'invoice-7'" in text
    assert effect_id in text
    assert error.effect_id == effect_id
    assert "saver.effects." in text or "force=True" in text, "a way on in code"
    assert f"`langgraph-durable effects resolve {effect_id}" in text or f"show {effect_id}`" in text
    assert text.rpartition("See docs/errors.md#")[2] in SECTIONS


def test_every_builder_is_tested() -> None:
    public = {name for name, value in vars(effect_errors).items() if _is_builder(name, value)}
    tested = {name for build in BUILT.values() for name in build.__code__.co_names} & public
    assert public == tested


def _is_builder(name: str, value: Any) -> bool:
    own = inspect.isfunction(value) and value.__module__ == effect_errors.__name__
    return own and not name.startswith("_") and name != "safe_text"


EFFECT_ERRORS = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, EffectError)
]


@pytest.mark.parametrize("kind", EFFECT_ERRORS)
def test_every_effect_error_links_to_its_section(kind: type[EffectError]) -> None:
    error = kind("It did not work.", "0" * 26)
    assert str(error) == f"It did not work. See docs/errors.md#{kind.__name__.lower()}"
    assert kind.__name__.lower() in SECTIONS


def _links() -> Iterator[tuple[str, int, str]]:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "see" and isinstance(node.value, ast.Constant):
                yield file.name, node.value.lineno, str(node.value.value)


def test_every_link_leads_to_a_section() -> None:
    links = list(_links())
    assert len(links) >= 6
    assert [link for link in links if link[2] not in SECTIONS] == []


@pytest.mark.parametrize("error", [EffectError("no", see="result-lost"), EffectUnknownError("no", "0" * 26)])
def test_effect_errors_can_be_pickled(error: EffectError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.effect_id) == (type(error), str(error), error.effect_id)


def test_decisions_have_the_same_words_everywhere() -> None:
    words = get_args(DecisionWord)
    assert words == DECISIONS == ("happened", "not_happened", "retry", "failed", "abandon")
    for page in ("effects.md", "cli.md"):
        text = (ROOT / "docs" / page).read_text()
        assert [word for word in words if f"`{word}`" not in text] == []
        assert "not-happened" not in text
