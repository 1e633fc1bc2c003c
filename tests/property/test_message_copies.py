"""The law of copies: what is loaded again is what the serializer makes, and shares nothing that can change."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import ormsgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.types import Send
from pydantic import BaseModel

from langgraph_durable import DurableSaver
from langgraph_durable._checkpoints import message_cache as _message_copies
from langgraph_durable._checkpoints.message_cache import copying_messages
from tests.checkpoints import checkpoint_with, config_for
from tests.conftest import Databases

SERDE = JsonPlusSerializer()
LAW = settings(
    max_examples=int(os.environ.get("DURABLE_EXAMPLES", "300")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class OwnMessage(HumanMessage):
    """A user's own, whose constructor may do anything."""


class OwnModel(BaseModel):
    words: list[Any]


@dataclasses.dataclass
class OwnData:
    words: list[Any]


# --- what there is ---

leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.just(datetime(2026, 1, 1, tzinfo=timezone.utc)) | st.just("é" * 300)
)  # fmt: skip
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
tables = st.dictionaries(st.text("abc", max_size=2), plain, max_size=3)
texts = st.text("xyz ", max_size=20)
contents = texts | st.lists(texts | tables, max_size=3)
common = {
    "additional_kwargs": tables,
    "response_metadata": tables,
    "id": st.none() | st.text("012", max_size=2),
}
calls = st.builds(lambda args, id_: {"name": "tool", "args": args, "id": id_}, tables, texts)
raw_calls = st.builds(
    lambda args: {"id": "1", "type": "function", "function": {"name": "tool", "arguments": args}},
    st.sampled_from(['{"a": [1]}', "{", ""]),
)
messages = st.one_of(
    st.builds(HumanMessage, contents, **common),
    st.builds(lambda content, extra: HumanMessage(content, extra=extra), texts, plain),
    st.builds(SystemMessage, contents, **common),
    st.builds(ChatMessage, contents, role=texts, **common),
    st.builds(FunctionMessage, texts, name=texts),
    st.builds(AIMessage, contents, tool_calls=st.lists(calls, max_size=2), **common),
    st.builds(
        lambda raw: AIMessage("", additional_kwargs={"tool_calls": raw}), st.lists(raw_calls, max_size=2)
    ),
    st.builds(AIMessageChunk, texts),
    st.builds(OwnMessage, contents),
)
models = st.builds(OwnModel, words=st.lists(plain, max_size=3))
others = models | st.builds(OwnData, st.lists(plain, max_size=3)) | st.builds(Send, texts, tables)
anything = (
    messages | others | plain
    | st.builds(ToolMessage, texts, tool_call_id=texts, artifact=plain | messages | others, **common)
)  # fmt: skip


@st.composite
def listings(draw: st.DrawFn) -> list[Any]:
    """Values one after the other, which have elements in common."""
    pool = draw(st.lists(anything, min_size=1, max_size=4))
    chosen = st.lists(st.sampled_from(pool), max_size=6)
    return draw(st.lists(chosen | chosen.map(lambda them: {"of": them}) | st.sampled_from(pool), max_size=6))


def shape(value: Any) -> Any:
    """Return all there is to a value: types, order, what pydantic knows of it."""
    if isinstance(value, BaseModel):
        inner = (
            vars(value),
            value.__pydantic_extra__,
            sorted(value.__pydantic_fields_set__),
            value.__pydantic_private__,
        )
        return type(value), *map(shape, inner)
    if dataclasses.is_dataclass(value):
        return type(value), shape(vars(value))
    if isinstance(value, dict):
        return type(value), [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, list):
        return type(value), [shape(v) for v in value]
    return type(value), repr(value)


def changing(value: Any) -> Iterator[Any]:
    """Yield all that can change in a value."""
    if isinstance(value, (BaseModel, Send)) or dataclasses.is_dataclass(value):
        yield value
    if isinstance(value, BaseModel):
        yield value.__pydantic_fields_set__
        for part in (vars(value), value.__pydantic_extra__):
            yield from changing(part)
    elif dataclasses.is_dataclass(value):
        yield from changing(vars(value))
    elif isinstance(value, Send):
        yield from changing(value.arg)
    elif isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from changing(inner)


def spoil(value: Any) -> None:
    """Change all that can change in a value."""
    for part in list(changing(value)):
        if isinstance(part, dict):
            part["spoilt"] = "spoilt"
        elif isinstance(part, set):
            part.add("spoilt")
        elif isinstance(part, list):
            part.append("spoilt")


def assert_law(values: list[Any], load: Callable[[tuple[str, bytes]], Any]) -> None:
    packed = [SERDE.dumps_typed(value) for value in values] * 4
    expected = [shape(SERDE.loads_typed(data)) for data in packed]
    loaded = [load(data) for data in packed]
    assert [shape(value) for value in loaded] == expected
    parts = [id(part) for value in loaded for part in changing(value)]
    assert len(parts) == len(set(parts))
    for value in loaded[::2]:
        spoil(value)
    assert [shape(value) for value in loaded[1::2]] == expected[1::2]
    assert [shape(load(data)) for data in packed] == expected


@LAW
@given(values=listings())
def test_copies_equal_what_the_serializer_makes(values: list[Any]) -> None:
    assert_law(values, copying_messages(SERDE).loads_typed)


@LAW
@given(values=listings(), room=st.integers(0, 10_000))
def test_copies_are_right_when_the_cache_is_small(values: list[Any], room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_message_copies, "_CACHE_BYTES", room)
        assert_law(values, copying_messages(SERDE).loads_typed)


TALK = [
    HumanMessage([{"type": "text", "text": "hello"}], id="1", additional_kwargs={"a": [1, {"b": []}]}),
    AIMessage("hi", id="2", tool_calls=[{"name": "tool", "args": {"a": [1]}, "id": "3"}]),
    ToolMessage("done", tool_call_id="3", artifact={"rows": [[1.5]]}),
    SystemMessage("be kind"),
]


@pytest.mark.parametrize("lost", ["parts", "extra", "sharing"])
def test_the_copy_check_detects_wrong_copies(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    if lost == "parts":
        monkeypatch.setattr(_message_copies, "_mutable_parts", lambda places, seen: [])
    elif lost == "extra":
        monkeypatch.setattr(_message_copies, "_copier", lambda value, seen: dict)
    else:
        monkeypatch.setattr(_message_copies, "_copier", lambda value, seen: lambda: value)
    with pytest.raises(AssertionError):
        assert_law([TALK], copying_messages(SERDE).loads_typed)


# --- which are copied, and which never ---

HUMAN = ("langchain_core.messages.human", "HumanMessage")


def made_anew(packed: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many objects the serializer makes when it loads a value for the fourth time."""
    serde, made = JsonPlusSerializer(), 0
    hook = serde._unpack_ext_hook

    def count(code: int, data: bytes) -> Any:
        nonlocal made
        made += 1
        return hook(code, data)

    monkeypatch.setattr(serde, "_unpack_ext_hook", count)
    copying = copying_messages(serde)
    for _ in range(4):
        made = 0
        assert shape(copying.loads_typed(packed)) == shape(SERDE.loads_typed(packed))
    return made


def test_repeated_messages_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_anew(SERDE.dumps_typed(TALK), monkeypatch) == 0
    assert made_anew(SERDE.dumps_typed({"a": TALK}), monkeypatch) == 0


@pytest.mark.parametrize(
    "value",
    [
        OwnMessage(content="hello"),
        OwnModel(words=[]),
        OwnData([]),
        ToolMessage("", tool_call_id="", artifact=datetime(2026, 1, 1, tzinfo=timezone.utc)),
        ToolMessage("", tool_call_id="", artifact=[float("nan")]),
        datetime(2026, 1, 1, tzinfo=timezone.utc),
    ],
)
def test_other_objects_are_constructed_each_time(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made_anew(SERDE.dumps_typed([value]), monkeypatch) == 1


@pytest.mark.parametrize(
    "payload",
    [
        (
            "langchain_core.messages.human",
            "HumanMessage",
            {"content": 7, "b": [[]]},
            "x",
        ),  # constructor refuses
        (*HUMAN, {"content": "x", "b": [[]]}),
        (*HUMAN, 7),
        ("langchain_core.messages.human", "Nothing", {"content": [[]]}),
        ("no.such.module", "HumanMessage", {"content": [[]]}),
    ],
)
def test_unusual_payloads_are_constructed_each_time(payload: Any) -> None:
    data = ormsgpack.packb([ormsgpack.Ext(EXT_PYDANTIC_V2, ormsgpack.packb(payload)), []])
    copying = copying_messages(SERDE)
    loaded = [copying.loads_typed(("msgpack", data)) for _ in range(4)]
    assert all(shape(value) == shape(SERDE.loads_typed(("msgpack", data))) for value in loaded)
    parts = [id(part) for value in loaded for part in changing(value)]
    assert len(parts) == len(set(parts))


def extension(code: int, *payload: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(payload))


def test_a_message_that_holds_objects_is_constructed_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = extension(EXT_CONSTRUCTOR_SINGLE_ARG, "builtins", "str", "x")
    message = extension(EXT_PYDANTIC_V2, *HUMAN, {"content": "", "additional_kwargs": {"text": text}})
    assert made_anew(("msgpack", ormsgpack.packb([message])), monkeypatch) == 1


def test_the_same_bytes_may_be_another_object() -> None:
    codes = [EXT_PYDANTIC_V2] * 3 + [EXT_CONSTRUCTOR_SINGLE_ARG, EXT_PYDANTIC_V2]
    packed = ("msgpack", ormsgpack.packb([extension(code, *HUMAN, {"content": "x"}) for code in codes]))
    assert shape(copying_messages(SERDE).loads_typed(packed)) == shape(SERDE.loads_typed(packed))


def test_a_message_with_a_shared_part_is_not_copied() -> None:
    shared: list[Any] = [1]
    message = HumanMessage("x")
    message.additional_kwargs = {"a": shared, "b": shared}
    with pytest.raises(_message_copies._NotCopyable):
        _message_copies._message_copier(message, set())


class Reversing(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversing", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversing"
        return ciphertext[::-1]


class OwnSerializer(JsonPlusSerializer):
    pass


class OwnEncryption(EncryptedSerializer):
    pass


def test_a_callers_serializer_is_used_unchanged() -> None:
    own: SerializerProtocol
    for own in (
        OwnSerializer(),
        OwnEncryption(Reversing()),
        JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: data),
    ):
        assert copying_messages(own) is own
    inner = OwnSerializer()
    outer = copying_messages(EncryptedSerializer(Reversing(), inner))
    assert type(outer) is EncryptedSerializer
    assert outer.serde is inner


# --- in listings ---


@pytest.fixture(scope="module")
def conninfo(databases: Databases, template: str) -> str:
    return databases.conninfo(databases.create(template))


@pytest.mark.parametrize("segment_key", [None, b"k" * 32])
@pytest.mark.parametrize("serde", [SERDE, EncryptedSerializer(Reversing()), OwnSerializer()])
def test_listed_messages_share_nothing_mutable(
    conninfo: str, serde: SerializerProtocol, segment_key: bytes | None
) -> None:
    thread_id = str(uuid4())
    talk: list[Any] = []
    with DurableSaver.from_conn_string(conninfo, serde=serde, segment_key=segment_key) as saver:
        config: Any = config_for(thread_id)
        for step in range(70):  # more than a page
            talk = [*talk, TALK[step % 4].model_copy(update={"id": str(step), "name": "n" * 300})]
            checkpoint = checkpoint_with({"messages": talk, "copy": talk[:step]})
            config = saver.put(config, checkpoint, {"step": step}, checkpoint["channel_versions"])
            saver.put_writes(config, [("messages", talk[-1]), ("messages", talk[0])], "task")
        expected = shape(saver.get_tuple(config))
        listed = []
        for found in saver.list(config_for(thread_id)):
            got = saver.get_tuple(found.config)
            assert got is not None
            for one, other in (
                (found.checkpoint, got.checkpoint),
                (found.pending_writes, got.pending_writes),
            ):
                assert shape(one) == shape(other)
            assert found == got
            spoil(found.checkpoint["channel_values"])
            spoil([value for _, _, value in found.pending_writes or []])
            listed.append(found)
        assert len(listed) == 70
        assert shape(saver.get_tuple(config)) == expected
        again = [shape(t.checkpoint) for t in saver.list(config_for(thread_id))]
        assert len(again) == 70
        assert not any(shape(spoilt.checkpoint) == found for spoilt, found in zip(listed, again, strict=True))


def test_other_objects_are_constructed_once_per_load() -> None:
    made = []

    def make(code: int, data: bytes) -> Any:
        made.append(data)
        return object()

    load, data = _message_copies._loader(make), ormsgpack.packb(["plain"])
    for times in (1, 2, 3):
        load(EXT_PYDANTIC_V2, data)
        assert len(made) == times
