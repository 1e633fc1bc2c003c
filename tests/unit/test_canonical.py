"""The canonical form of arguments: equal for equal values, and different for all others."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_serializer

from langgraph_durable.effects._identity.hashing import canonical, is_plain, is_same
from langgraph_durable.errors import EffectError


class Color(Enum):
    RED = "red"


class Hue(Enum):
    RED = "red"


class Cat(BaseModel):
    name: str
    toys: list[str] = Field(default_factory=list)


class Dog(BaseModel):
    name: str


@dataclass
class Fish:
    name: str
    toys: list[str] = field(default_factory=list)


DIFFERENT: list[Any] = [
    {1: "x"},
    {"1": "x"},
    {None: "x"},
    {"null": "x"},
    {"$dict": [[1, "x"]]},
    b"one",
    "b25l",
    {"$bytes": "b25l"},
    Decimal("1.5"),
    "1.5",
    1.5,
    1,
    True,
    "1",
    None,
    "null",
    float("nan"),
    "NaN",
    datetime(2026, 1, 1),
    datetime(2026, 1, 1, tzinfo=timezone.utc),
    "2026-01-01T00:00:00",
    date(2026, 1, 1),
    "2026-01-01",
    time(1),
    timedelta(1),
    timedelta(microseconds=1),
    UUID(int=1),
    str(UUID(int=1)),
    Path("a"),
    "a",
    {"a"},
    ["a"],
    Color.RED,
    Hue.RED,
    "red",
    Cat(name="tom"),
    Dog(name="tom"),
    Fish("tom"),
    {"name": "tom"},
    ip_address("::1"),
    "::1",
    [],
    {},
]


def test_different_values_have_different_forms() -> None:
    for one, other in itertools.combinations(DIFFERENT, 2):
        assert canonical(one) != canonical(other), (one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
        ({1: "x", 2: "y"}, {2: "y", 1: "x"}),
        (("a", 1), ["a", 1]),
        (deque(["a"]), ["a"]),
        ({"b", "a"}, frozenset(["a", "b"])),
        (Cat(name="tom"), Cat(name="tom", toys=[])),
        (Fish("tom"), Fish("tom", [])),
    ],
)
def test_equal_values_have_one_form(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)


def test_plain_json_stays_as_it_is() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": "ä"}) == '{"a":"\\u00e4","b":[1,2.5,null,true]}'


class Odd(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    what: object

    @field_serializer("what")
    def dump(self, what: object) -> str:
        return type(what).__name__


def test_a_model_may_serialize_what_only_it_knows() -> None:
    assert canonical(Odd(what=object())) == canonical(Odd(what=object()))


def test_what_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EffectError, match="plain data"):
        canonical(loop)


def test_an_argument_is_its_default_if_type_and_value_are() -> None:
    assert is_same([], [])
    assert is_same(Cat(name="tom"), Cat(name="tom"))
    assert not is_same(True, 1)
    assert not is_same("1", 1)
    marker = object()
    assert is_same(marker, marker)
    assert not is_same(object(), object())


def test_plain_values_are_data_throughout() -> None:
    plain: list[Any] = [None, "a", 1, 1.5, True, Decimal(1), date(2026, 1, 1), ["a", {"b": (1,)}], Color.RED]
    for value in plain:
        assert is_plain(value), value
    others: list[Any] = [object(), [object()], {"a": object()}, Cat(name="tom"), Fish("tom")]
    for value in others:
        assert not is_plain(value), value
