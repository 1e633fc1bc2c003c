"""Effects in the forms in which they are stored and shown."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._checkpoints.codec import decode, encode
from langgraph_durable._checkpoints.rows import Encoded
from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._effect_states import event_fault
from langgraph_durable._postgres.statement import Row
from langgraph_durable.effects._identity.hashing import digest, idempotency_key_of
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._storage.rows import EffectRequest, EffectRow
from langgraph_durable.effects.records import EffectEvent, EffectRecord
from langgraph_durable.errors import CheckpointCorruptedError, UnserializableValueError

# Prefixes of a result's type: what serializers do not preserve.
_RAISED = "raised:"
"""A Command that was raised for the parent graph."""
_TUPLE = "tuple:"
"""A tuple, as of a tool with an artifact, which would come back as a list."""


def encode_result(serde: SerializerProtocol, value: Any, what: str, *, raised: bool = False) -> Encoded:
    """Return a result as it is stored."""
    kind, data = encode(serde, value, what)
    if type(value) is tuple:
        kind = _TUPLE + kind
    return (_RAISED + kind if raised else kind), data


def decode_result(serde: SerializerProtocol, encoded: Encoded, what: object) -> tuple[Any, bool]:
    """Return a result as it was, and whether it was raised."""
    kind, data = encoded
    raised, kind = kind.startswith(_RAISED), kind.removeprefix(_RAISED)
    value = decode(serde, (kind.removeprefix(_TUPLE), data), what)
    if kind.startswith(_TUPLE):
        if not isinstance(value, (list, tuple)):
            raise CheckpointCorruptedError(
                f"cannot read {what}: it was a tuple, and is a {type(value).__name__}"
            )
        value = tuple(value)
    return value, raised


def hash_result(encoded: Encoded) -> bytes:
    """Return the hash of a stored result, by which results are compared after they expired."""
    return digest(encoded[1].hex())


def record_of(serde: SerializerProtocol, row: EffectRow) -> EffectRecord:
    """Return a stored effect as its `verify` and the log's readers see it."""
    args = None
    if row.input_type is not None and row.input is not None:
        # Users of the command line may lack the application's encryption key, and still have to decide.
        with suppress(CheckpointCorruptedError):
            args = decode(serde, (row.input_type, row.input), "the arguments")
    return EffectRecord(
        effect_id=format_ulid(row.effect_id),
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
        source=row.source,  # type: ignore[arg-type] # as this package's statements wrote it
        error=row.error,
        result_lost=row.result_lost,
        idempotency_key=idempotency_key_of(row.vendor_seed, row.generation),
        output_hash=row.output_hash.hex() if row.output_hash is not None else None,
        unreadable=row.fault,
    )


def event_of(effect_id: str, row: Row) -> EffectEvent:
    """Return a stored event of an effect as it is shown."""
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


def request_of(
    serde: SerializerProtocol,
    tool: str,
    scope: str,
    key: bytes,
    args: Any,
    place: Place | None,
    *,
    input_hash: bytes,
    **ids: Any,
) -> EffectRequest:
    """Return the effect that a call asks for."""

    def encode_input() -> tuple[str, bytes] | None:
        try:
            return encode(serde, args, f"the arguments of {tool!r}")
        except UnserializableValueError:  # the arguments are only shown; the hash identifies the call
            return None

    located: dict[str, Any] = {}
    if place is not None:
        located = {
            "thread_id": place.thread_id,
            "checkpoint_ns": place.checkpoint_ns,
            "checkpoint_id": place.checkpoint_id,
            "checkpoints": place.checkpoints_json,
            "task_id": place.task_id,
            "run_id": place.run_id,
        }
    return EffectRequest(key, tool, scope, input_hash, encode_input, **located, **ids)
