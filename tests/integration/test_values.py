"""What comes back equals what went in."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
import zlib
from collections import deque
from typing import Any

import numpy as np
import psycopg
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

from langgraph_durable import DurableSaver
from langgraph_durable.errors import UnserializableValueError
from tests.checkpoints import checkpoint_with, config_for, get_values, put
from tests.drivers import Saver


class Color(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: int
    y: list[float]


class Order(pydantic.BaseModel):
    number: int
    note: str | None = None


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "int": 7,
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "float": 0.1,
    "minus zero": -0.0,
    "infinity": math.inf,
    "text": "plain",
    "long text": "long " * 10_000,
    "unicode": "žluťoučký 🐎 \U0010ffff",
    "nul": "a\0b",
    "lone surrogate": "half \ud83d of an emoji?",
    "nested surrogate": {"k\udc00": ["\ud800", "\U0010ffffd800", "?"]},
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "empty": [],
    "list": [1, [2, {"three": None}]],
    "dict": {"a": {"b": [1, 2]}, 3: "int key"},
    "str enum": Color.RED,
    "int enum": Level.HIGH,
    "list of enums": [Color.RED, Level.HIGH],
    "dataclass": Point(1, [2.5, math.inf]),
    "pydantic": Order(number=3, note="\0"),
    "datetime": dt.datetime(2026, 11, 21, 3, 14, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "timedelta": dt.timedelta(days=1, microseconds=1),
    "date": dt.date(2026, 11, 21),
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=5),
    "set": {1, 2},
    "frozenset": frozenset({"a"}),
    "deque": deque([1, 2]),
    "send": Send("node", {"a": 1}),
    "messages": [HumanMessage("hello", id="1"), AIMessage("hi?", id="2")],
    "snapshot": _DeltaSnapshot([1, 2]),
}


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_is_read_back_equal_and_of_its_type(driven: Saver, name: str) -> None:
    value = VALUES[name]
    stored = await put(driven, config_for(), {"channel": value})
    await driven.aput_writes(stored, [("written", value)], str(uuid.uuid4()))
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.pending_writes is not None
    for back in (found.checkpoint["channel_values"]["channel"], found.pending_writes[0][2]):
        assert back == value
        assert type(back) is type(value)
        if isinstance(value, list):
            assert [type(b) for b in back] == [type(v) for v in value]


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.array([1.5, np.nan]), np.zeros((0, 2))])
async def test_arrays_are_read_back(driven: Saver, array: Any) -> None:
    stored = await put(driven, config_for(), {"array": array})
    back = (await get_values(driven, stored))["array"]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array, equal_nan=True)


async def test_nan_is_read_back(driven: Saver) -> None:
    stored = await put(driven, config_for(), {"top": math.nan, "nested": [math.nan]})
    values = await get_values(driven, stored)
    assert math.isnan(values["top"])
    assert math.isnan(values["nested"][0])


async def test_values_that_only_pickle_can_store_are_read_back(conninfo: str) -> None:
    deep: list[Any] = ["why?"]
    for _ in range(400):  # deeper than MessagePack goes
        deep = [deep]
    ring: list[Any] = ["why?"]
    ring.append(ring)
    serde = JsonPlusSerializer(pickle_fallback=True)
    with DurableSaver.from_conn_string(conninfo, serde=serde) as saver:
        values = await get_values(saver, await put(saver, config_for(), {"deep": deep, "ring": ring}))
    assert values["deep"] == deep
    assert values["ring"][0] == "why?"
    assert values["ring"][1] is values["ring"]


async def test_subclasses_of_str_come_back_as_the_serializer_makes_them(driven: Saver) -> None:
    memory = InMemorySaver()
    checkpoint = checkpoint_with({"name": Name("x")})
    config = config_for()
    for saver in (memory, driven):
        await saver.aput(config, checkpoint, {"source": "loop", "step": 0}, checkpoint["channel_versions"])
    expected = memory.get(config)
    assert expected is not None
    assert await get_values(driven, config) == expected["channel_values"]


async def test_a_value_of_twenty_megabytes_is_read_back(driven: Saver) -> None:
    value = {"blob": b"\x01\x02" * 10_000_000, "text": "x" * 1_000_000}
    stored = await put(driven, config_for(), {"channel": value})
    assert (await get_values(driven, stored))["channel"] == value


async def test_a_channel_without_a_value_does_not_come_back(driven: Saver) -> None:
    checkpoint = checkpoint_with({"set": [1], "left over": [2]})
    checkpoint["channel_versions"]["empty"] = "0000000001.0"
    del checkpoint["channel_versions"]["left over"]
    stored = await put(driven, config_for(), checkpoint=checkpoint)
    assert await get_values(driven, stored) == {"set": [1]}
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint["channel_versions"] == checkpoint["channel_versions"]


@pytest.mark.parametrize("version", [3, 3.5, "00000003.0.5"])
async def test_versions_of_every_type_are_read_back(driven: Saver, version: Any) -> None:
    checkpoint = checkpoint_with({"large": [1], "small": 2})
    checkpoint["channel_versions"] = {"large": version, "small": version}
    stored = await put(driven, config_for(), checkpoint=checkpoint)
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint == checkpoint


async def test_unknown_keys_of_a_checkpoint_and_its_metadata_are_kept(driven: Saver) -> None:
    checkpoint = checkpoint_with({"a": [1]}, pending_sends=[], of_the_future={"x": [1]})
    metadata: Any = {"source": "update", "step": 4, "none": None, "nested": {"a": [None]}, "nul\0": "a\0b"}
    config = config_for()
    config["metadata"] = {"tenant": "t1", "langgraph_step": 9}
    config["configurable"]["user"] = "ann"
    stored = await driven.aput(config, checkpoint, metadata, checkpoint["channel_versions"])
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.checkpoint == checkpoint
    assert found.metadata == metadata | {"tenant": "t1", "user": "ann", "nul\0": "ab"}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None)) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), PLAIN, max_size=4)
)
def test_load_of_store_is_the_value(saver: DurableSaver, values: dict[str, Any]) -> None:
    checkpoint = checkpoint_with(values)
    config = config_for()
    stored = saver.put(config, checkpoint, {"source": "loop", "step": 0}, checkpoint["channel_versions"])
    saver.put_writes(stored, list(values.items()), "task")
    found = saver.get_tuple(stored)
    assert found is not None
    assert found.checkpoint == checkpoint
    assert found.pending_writes == [("task", channel, value) for channel, value in values.items()]


# --- what cannot be stored ---


class Zipping(JsonPlusSerializer):
    """Tags its values as it likes."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return self._mark + kind, zlib.compress(data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0].startswith(self._mark)
        return super().loads_typed((data[0].removeprefix(self._mark), zlib.decompress(data[1])))


@pytest.mark.parametrize("mark", ["zlib:", "escaped:", "own:", "zlib:escaped:"])
async def test_a_serializer_may_use_the_marks_that_are_made_here(conninfo: str, mark: str) -> None:
    with DurableSaver.from_conn_string(conninfo, serde=Zipping(mark)) as saver:
        for value in (["short"], ["half of an emoji: \ud83d"], [f"{i} {i * i}" for i in range(5000)]):
            checkpoint = checkpoint_with({"channel": value})
            stored = saver.put(config_for(), checkpoint, {}, checkpoint["channel_versions"])
            saver.put_writes(stored, [("written", value)], "task")
            found = saver.get_tuple(stored)
            assert found is not None
            assert found.checkpoint["channel_values"] == {"channel": value}
            assert [write for *_, write in found.pending_writes or ()] == [value]


class Opaque:
    pass


async def test_an_unserializable_value_names_its_channel_and_stores_nothing(driven: Saver) -> None:
    config = config_for()
    with pytest.raises(UnserializableValueError, match=r"'bad'.*Opaque"):
        await put(driven, config, {"good": [1], "bad": Opaque()})
    assert await driven.aget_tuple(config) is None

    stored = await put(driven, config, {"good": [1]})
    with pytest.raises(UnserializableValueError, match="'bad'"):
        await driven.aput_writes(stored, [("good", 1), ("bad", Opaque())], "task")
    found = await driven.aget_tuple(stored)
    assert found is not None
    assert found.pending_writes == []


async def test_unserializable_metadata_is_named(driven: Saver) -> None:
    checkpoint = checkpoint_with()
    with pytest.raises(UnserializableValueError, match="metadata"):
        await driven.aput(config_for(), checkpoint, {"x": Opaque()}, {})  # type: ignore[typeddict-unknown-key]


# --- encryption ---

SECRET = "s3cret-w0rd"


async def test_with_encryption_only_keys_and_named_metadata_are_readable(conninfo: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    values = {
        "small": SECRET,
        "large": [SECRET] * 50,
        "broken": SECRET + "\ud800",
        "dict": {SECRET: SECRET},
    }
    async with DurableSaver.from_conn_string(conninfo, serde=serde) as saver:
        checkpoint = checkpoint_with(values, ts=SECRET)
        metadata: Any = {"source": "loop", "step": 3, "run_id": "run-1", "customer": SECRET, "n": 12345678}
        stored = await saver.aput(config_for("t"), checkpoint, metadata, checkpoint["channel_versions"])
        await saver.aput_writes(stored, [("large", SECRET), ("x", {"y": SECRET})], "task")

        found = await saver.aget_tuple(stored)
        assert found is not None
        assert found.checkpoint == checkpoint
        assert found.metadata == metadata
        for wanted in ({"customer": SECRET}, {"step": 3}, {"source": "loop", "customer": SECRET}):
            assert [t.config async for t in saver.alist(None, filter=wanted)] == [stored]
        for unwanted in ({"customer": "other"}, {"step": 4}, {"source": "loop", "customer": None}):
            assert [t async for t in saver.alist(None, filter=unwanted)] == []

    dump = _everything(conninfo)
    assert b"run-1" in dump  # the search itself works
    assert SECRET.encode() not in dump
    assert SECRET[1:].encode() not in dump
    assert b"customer" not in dump
    assert b"12345678" not in dump


async def test_indexed_metadata_chooses_what_stays_readable(conninfo: str) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    async with DurableSaver.from_conn_string(conninfo, serde=serde, indexed_metadata=["tenant"]) as saver:
        metadata: Any = {"source": "loop", "step": 77777, "run_id": "run-1", "tenant": "acme"}
        stored = await put(saver, config_for("t"), metadata=metadata)
        for wanted in ({"tenant": "acme"}, {"step": 77777, "run_id": "run-1"}):
            assert [t.config async for t in saver.alist(None, filter=wanted)] == [stored]
    dump = _everything(conninfo)
    assert b"acme" in dump
    assert b"run-1" not in dump
    assert b"77777" not in dump


async def test_another_key_cannot_read(conninfo: str) -> None:
    def saver_with(key: bytes) -> DurableSaver:
        return DurableSaver.from_conn_string(
            conninfo, serde=EncryptedSerializer.from_pycryptodome_aes(key=key)
        )

    async with saver_with(b"0123456789abcdef") as one, saver_with(b"fedcba9876543210") as other:
        stored = await put(one, config_for("t"), {"a": [1]})
        with pytest.raises(Exception, match="another serializer or key"):
            await other.aget_tuple(stored)


def _everything(conninfo: str) -> bytes:
    """Return every byte of every column of the saver's tables, bytea as it is."""
    found = b""
    with psycopg.connect(conninfo) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'langgraph_durable'"
        ).fetchall()
        assert len(tables) > 4
        for (table,) in tables:
            for row in connection.execute(f"SELECT * FROM langgraph_durable.{table}"):
                for value in row:
                    found += value if isinstance(value, bytes) else repr(value).encode()
    return found


def test_the_saver_is_a_checkpoint_saver(saver: DurableSaver) -> None:
    assert isinstance(saver, BaseCheckpointSaver)
