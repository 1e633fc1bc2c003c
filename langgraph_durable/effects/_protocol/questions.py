"""Questions to a human about effects, asked by LangGraph's interrupts, and the answers to them.

LangGraph matches answers to interrupts by counting: a task's n-th `interrupt()` gets the n-th answer. Our questions
would break that. A question that was answered is not asked when the task runs again, which would shift the answers of
the tool's own interrupts; and tools that run beside each other in one task count in the order in which they happen to
run. So an answer to the effect log names its effect, is taken out of LangGraph's scratchpad before any tool counts, and
uses up no interrupt.

An answer decides only what was asked before it: the effect's notes have each question with its fence, and each answer
that was used. LangGraph hands out the last answer again when a failed run continues, so without that one
"not_happened" would allow two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, get_args

from langgraph_durable._checkpoints.ulids import format_ulid, parse_ulid
from langgraph_durable.effects._identity.hashing import digest
from langgraph_durable.effects._identity.location import Place
from langgraph_durable.effects._protocol import effect_errors
from langgraph_durable.effects._protocol.attempt import EffectCall
from langgraph_durable.effects._protocol.run import Decision, resolve
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.encoding import record_of
from langgraph_durable.effects._storage.rows import EffectRow, Note, NoteKind
from langgraph_durable.effects.policy import DecisionWord, Finding, Happened, NotHappened

DECISIONS: tuple[DecisionWord, ...] = get_args(DecisionWord)
FORK_DECISIONS = ("replay", "new")


def is_addressed(value: Any) -> bool:
    """Return whether a value that a human sent is an answer to the effect log."""
    return isinstance(value, Mapping) and "decision" in value and _named_effect(value) is not None


def was_refused(call: EffectCall, row: EffectRow) -> bool:
    """Return whether a human answered this task that the effect failed."""
    return call.place is not None and Note(NoteKind.REFUSED.value, call.place.task_id) in row.notes


async def note_waiting(call: EffectCall, row: EffectRow) -> None:
    """Note that this task waits for a decision on a possible duplicate, so that it finds it decided when it reruns."""
    if call.place is not None:
        await store.add_notes(call.db, row.effect_id, [Note(NoteKind.WAITING.value, call.place.task_id)])


# --- answers ---


async def apply_answers(call: EffectCall, row: EffectRow) -> bool:
    """Apply the answers to this task's question about an unknown effect.

    Returns:
        Whether the effect was moved, by this task or another, so that it has to be read again.

    Raises:
        EffectError: The answer is that the effect failed and must not be retried here.
    """
    place = call.place
    if place is None:
        return False
    answers = place.execution.take_answers(is_addressed)
    if _question(place, row) not in row.notes:
        return False
    for answer in answers:
        named = _named_effect(answer)
        was_asked_otherwise = _question(place, row, FORK_DECISIONS) in row.notes
        if named == row.effect_id and was_asked_otherwise and answer["decision"] in FORK_DECISIONS:
            continue
        if named == row.effect_id:
            call.problem = _problem(answer, row, DECISIONS)
            if call.problem is None:
                await _apply_answer(call, row, answer)
                return True
        elif named is not None:
            other = await store.get_effect(call.db, named)
            if call.is_alone:
                call.problem = (
                    f"that answer was for effect {answer['effect']}, this question is about another"
                )
            if other is not None and _was_asked(other) and _problem(answer, other, DECISIONS) is None:
                # The caller answered another effect's question by this interrupt. The decision is clear all the same.
                await _apply_answer(call, other, answer, elsewhere=True)
    return False


async def _apply_answer(
    call: EffectCall, row: EffectRow, answer: Mapping[str, Any], *, elsewhere: bool = False
) -> None:
    assert call.place is not None  # noqa: S101 (answers come to tasks)
    decision = answer["decision"]
    finding: Finding | None = NotHappened() if decision in ("not_happened", "retry", "failed") else None
    if decision == "happened":
        finding = Happened(answer.get("result"))
    notes = [_answer(answer)]
    if decision == "failed":
        asker = row.task_id if elsewhere else call.place.task_id
        notes.append(Note(NoteKind.REFUSED.value, asker or ""))
    note = answer.get("note")
    reason = f"{decision}: {note}" if note else str(decision)
    # The notes are stored with the move or not at all. An answer that moved the effect without a note could come again
    # and move it again; one with a note but no move would be refused when the task reruns.
    moved = await resolve(call.db, call.serde, row, Decision(finding, "human", "human", reason, notes))
    if moved and decision == "failed" and not elsewhere:
        raise effect_errors.declared_failed(row)


# --- questions ---


async def ask(call: EffectCall, row: EffectRow) -> NoReturn:
    """Ask a human whether an effect took place: the graph waits for the answer by LangGraph's interrupt."""
    await _ask(call, row, f"Did {row.tool} take place?", DECISIONS)


async def ask_about_fork(call: EffectCall, row: EffectRow, question: str | None = None) -> str:
    """Ask a human whether a call gets the outcome of an effect that may be another call's, or a new effect.

    Args:
        call: The call.
        row: The effect.
        question: The question; by default that about an effect of another branch.

    Returns:
        "replay" or "new". If there is no answer yet, the graph waits for it.
    """
    place = call.place
    assert place is not None  # noqa: S101 (there are no forks outside of a graph)
    for decision in FORK_DECISIONS:
        if Note(NoteKind.FORK.value, place.task_id, token=decision) in row.notes:
            return decision
    answers = place.execution.take_answers(is_addressed)
    if _question(place, row, FORK_DECISIONS) in row.notes:
        for answer in answers:
            if _named_effect(answer) != row.effect_id:
                continue
            call.problem = _problem(answer, row, FORK_DECISIONS)
            if call.problem is None:
                decision = str(answer["decision"])
                note = Note(NoteKind.FORK.value, place.task_id, token=decision)
                await store.add_notes(call.db, row.effect_id, [note])
                return decision
    question = question or f"{row.tool} took place on another branch: its outcome again, or anew?"
    return await _ask(call, row, question, FORK_DECISIONS)


async def _ask(call: EffectCall, row: EffectRow, question: str, decisions: Sequence[str]) -> NoReturn:
    from langgraph.errors import GraphInterrupt
    from langgraph.types import Interrupt

    place = call.place
    assert place is not None  # noqa: S101 (outside of a graph there is no human to ask)
    answers = place.execution.take_answers(is_addressed)
    used = [_answer(answer) for answer in answers if _named_effect(answer) == row.effect_id]
    was_asked = _question(place, row, decisions) in row.notes
    is_answer_due = call.problem is None and call.is_alone and was_asked
    if is_answer_due and place.execution.has_unaddressed_answer(place.checkpoint_ns):
        call.problem = f"the answer must {_example(row, decisions)}"
    waited = row.state == "unknown" and row.previous_state == "suspended" and row.key == call.request.key
    if waited and not was_asked:
        place.execution.keep_answers(place.send)  # they are for the body, which has not run since
    await store.add_notes(call.db, row.effect_id, [_question(place, row, decisions), *used])
    record = record_of(call.serde, row)
    shown: dict[str, Any] = {
        "question": question,
        "effect": record.effect_id,
        "tool": record.tool,
        "args": record.args,
        "attempts": record.attempts,
        "started_at": record.first_attempt_at.isoformat(),
        "error": record.error,
        "decisions": list(decisions),
    }
    if call.problem is not None:
        shown["problem"] = call.problem
    raise GraphInterrupt((Interrupt.from_ns(shown, place.checkpoint_ns),))


def _question(place: Place, row: EffectRow, decisions: Sequence[str] = DECISIONS) -> Note:
    """Return the note of a question. One of the two questions says nothing about the other."""
    token = NoteKind.FORK.value if decisions is FORK_DECISIONS else ""
    return Note(NoteKind.QUESTION.value, place.task_id, row.fence, token)


def _answer(answer: Mapping[str, Any]) -> Note:
    """Return the note of a used answer: a hash of its decision, not of its result, which may be of any type."""
    decided = [str(answer.get(name)) for name in ("effect", "decision", "note")]
    return Note(NoteKind.ANSWER.value, token=digest(decided).hex()[:16])


def _was_asked(row: EffectRow) -> bool:
    """Return whether a task asked about an unknown effect as it is now."""
    return row.state == "unknown" and any(
        note.kind == NoteKind.QUESTION.value and note.fence == row.fence for note in row.notes
    )


def _named_effect(answer: Any) -> Any:
    """Return the id of the effect that an answer names, or None."""
    return parse_ulid(str(answer.get("effect"))) if isinstance(answer, Mapping) else None


def _problem(answer: Mapping[str, Any], row: EffectRow, decisions: Sequence[str]) -> str | None:
    """Return why an answer that names an effect does not decide on it; None if it does."""
    if answer["decision"] not in decisions:
        return f"the answer must {_example(row, decisions)}"
    attempts = answer.get("attempts")
    if attempts is None and _answer(answer) in row.notes:
        return f'that answer was given before: add "attempts": {row.attempts} if it is for this attempt too'
    if attempts is not None and attempts != row.attempts:
        return f"that answer was for attempt {attempts!r}, this question is about attempt {row.attempts}"
    return None


def _example(row: EffectRow, decisions: Sequence[str]) -> str:
    """Return what an answer must do, with an example."""
    decision = f'"decision": {" or ".join(map(repr, decisions))}'
    more = ', "result": ..., "note": ...' if decisions is DECISIONS else ""
    return f'name the effect it is for: {{"effect": {format_ulid(row.effect_id)!r}, {decision}{more}}}'
