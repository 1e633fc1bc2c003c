"""Which stored effect a call is, if its key alone does not say so.

An effect under the call's key may belong to another call: several `Send`s carry one message, and a cached model answer
repeats the id of its message. An effect under another key may be this call's: a model that is asked again after a crash
answers by a new message. docs/design/identity.md says how both are decided.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable._postgres.times import OutOfRange
from langgraph_durable.effects._identity.hashing import digest
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._protocol import effect_errors, lineage, questions
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, describe, owner
from langgraph_durable.effects._protocol.lineage import Related
from langgraph_durable.effects._protocol.results import replay
from langgraph_durable.effects._protocol.suspended import declare_unknown
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import EffectRow, Note, NoteKind, Relation
from langgraph_durable.errors import EffectDuplicateError

_SAME_CALL = (Relation.UNDELIVERED, Relation.FORK, Relation.GONE)
_OPEN = ("issued", "unknown")


# --- effects under the call's key ---


async def find_match(call: EffectCall) -> Related | None:
    """Find the call's effect among those of the calls that share its key, and give the call its number.

    Returns:
        The effect, or None if the call is a new one, to be claimed under the next number.
    """
    place = _place(call)
    call.family = call.family or call.request.key
    members = await lineage.find_family(call, place, call.family)
    match = _choose(call, place, members)
    number = members.index(match) if match is not None else len(members)
    call.request = replace(call.request, key=lineage.numbered_key(call.family, number))
    return match


def _choose(call: EffectCall, place: Place, members: list[Related]) -> Related | None:
    """Choose the call's effect: its own, or one that it repeats, with equal arguments if there is one."""
    alike = [m for m in members if m.row.input_hash == call.request.input_hash]
    own = [m for m in members if m.relation is Relation.OWN]
    same = [m for m in members if m.relation in _SAME_CALL]
    # What was delivered is not this call's. But if its end is unknown, it has to be resolved first.
    unresolved = [m for m in alike if m.relation is Relation.DELIVERED and m.row.state in _OPEN]
    for match in (*(m for m in own if m in alike), *(m for m in same if m in alike), *unresolved):
        return match
    # The same call with other arguments is a conflict. `Send`s of one message may differ in what is injected.
    conflicting = own if place.push is not None else own + same
    return conflicting[0] if conflicting else None


async def replay_match(call: EffectCall, match: Related) -> Attempt | None:
    """Replay a completed effect for the task that calls, and record that it was given the outcome.

    Returns:
        The replay, or None if the call has to be claimed: it wants a separate effect, or another call was faster.

    Raises:
        EffectForkedError: It took place on another branch, and the policy refuses that.
    """
    row = match.row
    if match.relation is Relation.OWN:
        await lineage.record_found(call, row)
        return await replay(call, row)
    place = _place(call)
    if match.relation is Relation.FORK and await _wants_new_on_fork(call, row):
        call.request = replace(call.request, key=digest(row.key.hex(), place.task_id))
        return None
    if not await lineage.record_delivery(call.db, row.effect_id, place, note_count=row.note_count):
        return None
    return await replay(call, row)


# --- effects under other keys ---


async def take_candidate(call: EffectCall) -> Attempt | None:
    """Take the outcome of an effect that the call asks for again, if there is one.

    Returns:
        The replay, or None if the call has to be claimed, or was already by another process.

    Raises:
        EffectDuplicateError: There is one, and the policy does not say that the call may have its outcome.
        EffectForkedError: There is one on another branch, and the policy refuses that.
    """
    for row, relation in await lineage.find_candidates(call, _place(call)):
        if row.state == "suspended":
            if await _abandon_waiting(call, row, relation):
                return None
            continue
        wants_new = _wants_new_on_fork if relation is Relation.FORK else _wants_new_if_undelivered
        if not await wants_new(call, row):
            return await adopt(call, row)
    call.takes_candidates = False
    return None


async def _abandon_waiting(call: EffectCall, row: EffectRow, relation: Relation) -> bool:
    """Declare unknown what waited for a human when its step was abandoned; return whether it may be this call's."""
    if not call.can_find_out or (relation is Relation.FORK and call.policy.on_fork == "new"):
        return False
    await declare_unknown(call, row)  # if that fails, another process moved it
    return True


async def adopt(call: EffectCall, row: EffectRow) -> Attempt | None:
    """Record that the call's effect is a completed one under another key; None if another call took that."""
    if any(note.kind == NoteKind.ADOPTED.value for note in row.notes):
        return None  # while this call found out what became of it
    reason = f"is effect {format_ulid(row.effect_id)}, requested twice"
    adopted = await lineage.adopt(call, row, owner(), reason)
    return await replay(call, adopted) if adopted is not None else None


async def adopt_duplicate(call: EffectCall, row: EffectRow) -> Attempt | None:
    """Record that the call's effect is a possible duplicate that took place, unless on_fork says otherwise.

    An effect whose outcome was unknown is the same call's even if its step was delivered: the model received an error.
    """
    if call.policy.on_fork != "replay" and call.place is not None:
        related = await lineage.find_candidates(call, call.place)
        is_fork = any(r.row.effect_id == row.effect_id and r.relation is Relation.FORK for r in related)
        if is_fork and await _wants_new_on_fork(call, row):
            note = Note(NoteKind.FORK.value, call.place.task_id, 0, "new")
            await store.add_notes(call.db, row.effect_id, [note])
            return None
    return await adopt(call, row)


async def wants_new_if_old(call: EffectCall, row: EffectRow) -> bool:
    """Return whether the call is another one than a possible duplicate that was attempted long ago.

    Raises:
        EffectDuplicateError: The policy lets no human decide.
    """
    if not _is_old(call, row):
        return False
    if "ask" not in (call.policy.on_unknown, call.policy.on_undelivered) or call.place is None:
        # Once it is resolved, an effect inside another one is not looked for unless a task waits for it.
        await questions.note_waiting(call, row)
        raise _duplicate_error(call, row)
    return await _ask_whether_new(call, row)


async def _wants_new_if_undelivered(call: EffectCall, row: EffectRow) -> bool:
    choice = call.policy.on_undelivered
    if choice == "raise" or (choice == "replay" and _is_old(call, row)):
        raise _duplicate_error(call, row)
    return choice == "new" or (choice == "ask" and await _ask_whether_new(call, row))


async def _wants_new_on_fork(call: EffectCall, row: EffectRow) -> bool:
    if call.policy.on_fork == "raise":
        raise effect_errors.forked(row)
    if call.policy.on_fork == "ask":
        return await questions.ask_about_fork(call, row) == "new"
    return call.policy.on_fork == "new"


async def _ask_whether_new(call: EffectCall, row: EffectRow) -> bool:
    question = (
        f"{row.tool} was requested {_age(row)} ago with the same arguments, and its outcome was never delivered: is "
        "this the same request, or a new one?"
    )
    return await questions.ask_about_fork(call, row, question) == "new"


def _is_old(call: EffectCall, row: EffectRow) -> bool:
    window = call.policy.duplicate_window
    if window is None:
        return False
    return isinstance(row.attempted_at, OutOfRange) or row.now - row.attempted_at > window


def _age(row: EffectRow) -> timedelta:
    return timedelta(seconds=round((row.now - row.attempted_at).total_seconds()))


def _duplicate_error(call: EffectCall, row: EffectRow) -> EffectDuplicateError:
    effect_id = format_ulid(row.effect_id)
    known = "took place" if row.state == "completed" else f"is {row.state}"
    return EffectDuplicateError(
        f"{describe(row)} was attempted {_age(row)} ago with the same arguments, and {known}. Its outcome was never "
        f"delivered, so {call.request.tool!r} may be the same request or a new one. If the effect is dealt with, call "
        f"saver.effects.acknowledge({effect_id!r}) or `langgraph-durable effects acknowledge {effect_id}`, and run "
        'again: the call is a new effect then. Or set on_undelivered="ask" or "new", or a longer duplicate_window=',
        effect_id,
    )


def _place(call: EffectCall) -> Place:
    assert call.place is not None  # noqa: S101 (outside of a graph, calls are identified by their keys alone)
    return call.place
