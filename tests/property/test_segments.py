"""The law of segments: what is loaded is what a whole-value round trip gives, whatever was stored and however often."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import DurableSaver
from langgraph_durable._segments import chunking
from langgraph_durable._segments import values as segment_values
from tests.checkpoints import checkpoint_with, config_for
from tests.conftest import Databases

EXAMPLES = int(os.environ.get("DURABLE_EXAMPLES", "500"))
SERDE = JsonPlusSerializer(pickle_fallback=True)
LAW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@pytest.fixture(params=["full size", "tiny"])
def sizes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Segments as they are, and ones so tiny that whatever has two elements is cut."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tiny":
            make_tiny(patch)
        yield


def make_tiny(patch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (segment_values, "_SHORTEST_VALUE", 3),
        (segment_values, "_SMALLEST_INDEX", 2),
        (segment_values, "_LARGEST_INDEX", 4),
        (chunking, "_SMALLEST", 2),
        (chunking, "_LARGEST", 40),
        (chunking, "_RATE", 2**32 // 6),
    ):
        patch.setattr(module, name, value)


# --- cutting: pure ---


class Words(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.text(st.characters(codec=None), max_size=30) | st.binary(max_size=30)
    | st.builds(lambda n, text: text * n, st.sampled_from([50, 400, 3000, 70_000]), st.text("ab?é", max_size=2))
    | st.builds(HumanMessage, st.text("xyz ", max_size=40), id=st.text("0123", min_size=1, max_size=3))
)  # fmt: skip
elements = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc?", max_size=3), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.builds(Words, st.lists(inner, max_size=3))
        | st.builds(Table, st.dictionaries(st.text("abc", max_size=3), inner, max_size=3))
    ),
    max_leaves=8,
)


@st.composite
def lists(draw: st.DrawFn) -> list[Any]:
    """Lists with elements that come again, as the same object or as an equal one."""
    pool = draw(st.lists(elements, min_size=1, max_size=6))
    indexes = draw(st.lists(st.integers(0, 5), max_size=60))
    return [pool[i % len(pool)] if i < 4 else copy.deepcopy(pool[i % len(pool)]) for i in indexes]


dicts: st.SearchStrategy[dict[Any, Any]] = st.dictionaries(
    st.text("abcdef", max_size=4) | st.integers(0, 300), elements, max_size=30
)
values: st.SearchStrategy[Any] = st.one_of(
    lists(),
    dicts,
    lists().map(_DeltaSnapshot),
    lists().map(Words),
    dicts.map(Table),
    lists().map(tuple),
    elements,
    st.lists(st.integers(0, 9), max_size=5000),
)


def assert_cut_well(data: bytes) -> list[bytes]:
    found = chunking.cut(data)
    if found is None:
        return []
    head, bounds = found
    assert 0 < head <= 12
    assert bounds == sorted(set(bounds))
    assert head < bounds[0]
    assert bounds[-1] <= len(data)
    pieces = [data[a:b] for a, b in zip([head, *bounds], bounds, strict=False)]
    assert data[:head] + b"".join(pieces) + data[bounds[-1] :] == data
    return pieces


@pytest.mark.usefixtures("sizes")
@LAW
@given(value=values)
def test_segments_join_to_the_serialized_value(value: Any) -> None:
    assert_cut_well(SERDE.dumps_typed(value)[1])


@LAW
@given(data=st.binary(max_size=200), fill=st.integers(0, 3000))
def test_bytes_that_are_not_messagepack_are_not_cut(data: bytes, fill: int) -> None:
    assert_cut_well(data + data[:1] * fill)
    assert_cut_well(b"\xdc\x00\x05" + data + b"\x01" * fill)


def messages(count: int, start: int = 0) -> list[Any]:
    return [
        (HumanMessage, AIMessage)[i % 2](f"message {i}: " + f"so it goes {i}, " * 60, id=str(i))
        for i in range(start, start + count)
    ]


def pieces_of(value: Any) -> list[bytes]:
    return assert_cut_well(SERDE.dumps_typed(value)[1])


@pytest.mark.parametrize("wrap", [list, _DeltaSnapshot])
def test_an_edit_changes_a_few_segments(wrap: Any) -> None:
    whole = messages(400)
    before = pieces_of(wrap(whole))
    assert len(before) > 50
    assert all(1024 <= len(piece) <= 65536 for piece in before)
    edits = {
        "append": [*whole, *messages(1, 400)],
        "change in the middle": [*whole[:200], *messages(1, 999), *whole[201:]],
        "remove": [*whole[:200], *whole[201:]],
        "trim": whole[150:],
        "insert in front": [*messages(1, 999), *whole],
        "swap": [*whole[:100], whole[300], *whole[101:300], whole[100], *whole[301:]],
    }
    for name, edited in edits.items():
        new = set(pieces_of(wrap(edited))) - set(before)
        assert len(new) <= (8 if name == "swap" else 4), name
    assert set(pieces_of(wrap(whole[::-1]))) != set(before)


def test_an_unchanged_beginning_has_the_same_segments() -> None:
    whole = messages(300)
    before = pieces_of(whole)
    for length in range(10, 300, 7):
        pieces = pieces_of(whole[:length])
        assert pieces == before[: len(pieces)]


def test_a_dict_of_files_has_a_segment_a_file() -> None:
    files = {f"file {i}": {"content": [f"line {i} {n} of it" for n in range(600)]} for i in range(30)}
    before = set(pieces_of(files))
    files["file 7"]["content"][100] = "changed"
    assert len(set(pieces_of(files)) - before) == 1


# --- storing ---


@pytest.fixture(scope="module")
def conninfo(databases: Databases, template: str) -> str:
    """One database for all examples, each with its own thread."""
    return databases.conninfo(databases.create(template))


@pytest.fixture(scope="module")
def savers(conninfo: str) -> Iterator[list[DurableSaver]]:
    """One that is warm, one that keeps nothing, one that has room for little, and one whose hashes are keyed."""
    with (
        DurableSaver.from_conn_string(conninfo, serde=SERDE) as warm,
        DurableSaver.from_conn_string(conninfo, serde=SERDE, segment_cache_bytes=0) as cold,
        DurableSaver.from_conn_string(conninfo, serde=SERDE, segment_cache_bytes=20_000) as small,
        DurableSaver.from_conn_string(conninfo, serde=SERDE, segment_key=b"k" * 32) as keyed,
    ):
        yield [warm, cold, small, keyed]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any, Any, int]]:
    """What is done to a list from put to put."""
    edits = st.sampled_from(["append", "remove", "change", "mutate", "swap", "trim", "replace", "same"])
    return draw(st.lists(st.tuples(edits, values, elements, st.integers(0, 59)), min_size=1, max_size=6))


def edit(value: Any, how: str, other: Any, element: Any, at: int) -> Any:
    """Return the next value: the same list, changed in place or not, or another value."""
    if how == "replace" or not isinstance(value, list) or not value:
        return other
    at %= len(value)
    if how == "append":
        return [*value, element]
    if how == "remove":
        return value[:at] + value[at + 1 :]
    if how == "change":
        return [*value[:at], element, *value[at + 1 :]]
    if how == "mutate" and isinstance(value[at], (list, dict)):
        (value[at].append if isinstance(value[at], list) else lambda e: value[at].update(new=e))(element)
        return value
    if how == "swap":
        value[0], value[at] = value[at], value[0]
    return value[at:] if how == "trim" else value


@pytest.mark.usefixtures("sizes")
@settings(LAW, max_examples=max(1, EXAMPLES // 3))
@given(
    first=values,
    history=histories(),
    who=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    keyed=st.booleans(),
)
@example(first=[], history=[], who=[0] * 7, keyed=False)
def test_load_of_store_is_a_round_trip(
    savers: list[DurableSaver], first: Any, history: list[Any], who: list[int], keyed: bool
) -> None:
    """Puts by processes that know more or less; every version is then read by each, alone, in a list, and as a seed."""
    readers, who = ([savers[3]], [3] * len(who)) if keyed else (savers, who)
    thread_id = str(uuid4())
    config: Any = config_for(thread_id)
    expected: list[tuple[Any, tuple[str, bytes]]] = []
    value = first
    for i, step in enumerate([None, *history]):
        if step is not None:
            value = edit(value, *step)
        checkpoint = checkpoint_with({"channel": value, "copy": value})
        saver = savers[who[i % len(who)]]
        packed = SERDE.dumps_typed(value)
        config = saver.put(config, checkpoint, {"source": "loop", "step": i}, checkpoint["channel_versions"])
        expected.append((config, packed))
    for reader in readers:
        listed = {t.checkpoint["id"]: t.checkpoint for t in reader.list(config_for(thread_id))}
        for stored, packed in expected:
            found = reader.get(stored)
            assert found is not None
            both = [found["channel_values"], listed[found["id"]]["channel_values"]]
            for got in both:
                assert same(got["channel"], packed)
                assert same(got["copy"], packed)
            assert nothing_shared(both[0]["channel"], both[1]["channel"])
        seeds = reader.get_delta_channel_history(config=config, channels=["channel"])
        if len(expected) > 1:
            assert same(seeds["channel"]["seed"], expected[-2][1])


def same(got: Any, packed: tuple[str, bytes]) -> bool:
    """Return whether a value is what a whole-value round trip gives, compared as serialized."""
    return SERDE.dumps_typed(got) == SERDE.dumps_typed(reloaded(packed))


def reloaded(packed: tuple[str, bytes]) -> Any:
    return SERDE.loads_typed(packed)


def nothing_shared(one: Any, other: Any) -> bool:
    def mutables(value: Any) -> set[int]:
        found = {id(value)} if isinstance(value, (list, dict, HumanMessage)) else set()
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        )
        return found.union(*(mutables(v) for v in inner))

    return not mutables(one) & mutables(other)


def test_elements_of_very_different_sizes_are_read_back(savers: list[DurableSaver], conninfo: str) -> None:
    for value in (
        [*range(100_000)],
        [0] * 100_000,
        [b"x" * 50_000_000],
        ["small", "y" * 5_000_000, *("small" * 300 for _ in range(50))],
        {"deep": [[[["z" * 500] * 500] * 2] * 2]},
    ):
        thread_id = str(uuid4())
        checkpoint = checkpoint_with({"channel": value})
        savers[0].put(config_for(thread_id), checkpoint, {}, checkpoint["channel_versions"])
        for reader in savers[:3]:
            found = reader.get(config_for(thread_id))
            assert found is not None
            assert found["channel_values"]["channel"] == value
        with psycopg.connect(conninfo) as connection:
            query = "SELECT count(*) FROM langgraph_durable.segments WHERE thread_id = %s"
            row = connection.execute(query, (thread_id,)).fetchone()
            assert row is not None
            assert row[0] > 0


def test_the_round_trip_check_detects_a_lost_tail(
    savers: list[DurableSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_durable._checkpoints.codec.join", lambda value, _: b"".join(value.parts))
    with pytest.raises(Exception, match=r"cannot read|assert"):
        test_elements_of_very_different_sizes_are_read_back(savers, "")
