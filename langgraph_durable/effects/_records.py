"""Effects as they are kept, and as people and code are shown them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable import _codec
from langgraph_durable._effect_records import EffectEvent, EffectRecord, event_fault
from langgraph_durable._effects_ops import Call, EffectRow
from langgraph_durable._rows import Encoded
from langgraph_durable._sessions import Row
from langgraph_durable._ulids import show_ulid
from langgraph_durable.effects._calls import Place, canonical, digest, vendor_key_of
from langgraph_durable.errors import CheckpointCorrupted, UnserializableValue

# Before the type of a result, what the serializer does not tell.
_RAISED = "raised:"
"""It was a Command, raised for the parent graph."""
_TUPLE = "tuple:"
"""It was a tuple, as of a tool with an artifact, which would come back as a list."""


def encode_result(serde: SerializerProtocol, value: Any, what: str, *, raised: bool = False) -> Encoded:
    """Return a result as it is stored."""
    kind, data = _codec.encode(serde, value, what)
    if type(value) is tuple:
        kind = _TUPLE + kind
    return (_RAISED + kind if raised else kind), data


def decode_result(serde: SerializerProtocol, encoded: Encoded, what: str) -> tuple[Any, bool]:
    """Return a result as it was, and whether it was raised."""
    kind, data = encoded
    raised, kind = kind.startswith(_RAISED), kind.removeprefix(_RAISED)
    value = _codec.decode(serde, (kind.removeprefix(_TUPLE), data), what)
    if kind.startswith(_TUPLE):
        if not isinstance(value, (list, tuple)):
            raise CheckpointCorrupted(f"cannot read {what}: it was a tuple, and is a {type(value).__name__}")
        value = tuple(value)
    return value, raised


def record_of(serde: SerializerProtocol, row: EffectRow) -> EffectRecord:
    """Turn a stored effect into what people and code are shown."""
    args = None
    if row.input_type is not None and row.input is not None:
        # Whoever lists effects on the command line may not have the application's key, and has to decide all the same.
        with suppress(CheckpointCorrupted):
            args = _codec.decode(serde, (row.input_type, row.input), "the arguments")
    return EffectRecord(
        effect_id=show_ulid(row.effect_id),
        tool=row.tool,
        args=args,
        state=row.state,
        scope=row.scope,
        thread_id=row.thread_id,
        checkpoint_ns=row.checkpoint_ns,
        checkpoint_id=row.checkpoint_id,
        task_id=row.task_id,
        run_id=row.run_id,
        message_id=row.message_id,
        tool_call_id=row.tool_call_id,
        attempts=row.attempts,
        generation=row.generation,
        fence=row.fence,
        owner=row.owner,
        first_attempt_at=row.first_attempt_at,
        attempted_at=row.attempted_at,
        ended_at=row.ended_at,
        source=row.source,  # type: ignore[arg-type] # as the statements of this package wrote it
        error=row.error,
        result_lost=row.result_lost,
        vendor_key=vendor_key_of(row.vendor_seed, row.generation),
        unreadable=row.fault,
    )


def event_of(effect_id: str, row: Row) -> EffectEvent:
    """Turn a stored step in the life of an effect into what people and code are shown."""
    number, at, before, after, fence, attempt, actor, reason = row
    return EffectEvent(
        effect_id,
        at,
        before,
        after,
        fence,
        attempt,
        actor,
        reason,
        event_fault(effect_id, number, at, before, after),
    )


def call_of(
    serde: SerializerProtocol, tool: str, scope: str, key: bytes, args: Any, place: Place | None, **ids: Any
) -> Call:
    """Return a call as it is kept."""

    def encode_input() -> tuple[str, bytes] | None:
        try:
            return _codec.encode(serde, args, f"the arguments of {tool!r}")
        except UnserializableValue:  # only shown to people; the hash is what counts
            return None

    located: dict[str, Any] = {}
    if place is not None:
        located = {
            "thread_id": place.thread_id,
            "checkpoint_ns": place.checkpoint_ns,
            "checkpoint_id": place.checkpoint_id,
            "task_id": place.task_id,
            "run_id": place.run_id,
        }
    return Call(key, tool, scope, digest(tool, canonical(args)), encode_input, **located, **ids)
