"""Questions to a human, by LangGraph's interrupts, and what LangGraph raises through a body.

LangGraph finds an interrupt's answer by counting: the n-th `interrupt()` of a task gets the n-th answer. A question of
ours that one execution of a task asks, and the next does not because it was answered, would shift the answers of the
tool's own interrupts, and tools that run beside each other in one task count in the order in which they happen to run.
So ours are told by what they say instead: an answer names its effect, is taken out of LangGraph's hands before any
tool counts, and no interrupt is spent on it.

An answer decides only what was asked before it: the effect remembers each question with its fence, and which answers
it has seen. LangGraph hands out the last answer again when a run that failed goes on: without that, one "retry" would
allow two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from langgraph_durable import _effects_ops as ops
from langgraph_durable._effects_ops import EffectRow
from langgraph_durable._ulids import parse_ulid, show_ulid
from langgraph_durable.effects._calls import Place, digest
from langgraph_durable.effects.policy import Finding, Happened, NotHappened
from langgraph_durable.errors import EffectError

if TYPE_CHECKING:
    from langgraph_durable.effects._guard import Guard

DECISIONS = ("happened", "retry", "failed", "abandon")
FORK_DECISIONS = ("replay", "new")

# What an effect remembers, in `asked`: `task/fence`, what a task asked about; `task/` and its decision about a fork, or
# one of these; and `seen/`, the answers that came. (And, of others: `claim` and `decision`, by which the retry of a
# statement knows its own move; `kept fence`, that a failure of that attempt leaves the vendor's key as it is.)
_WAITING = "waiting"
"""The task waits for a decision on a twin of its effect."""
_REFUSED = "refused"
"""A human told the task that the effect failed, and is not to be tried again there."""


def is_interrupt(exc: BaseException) -> bool:
    """Tell whether an exception is LangGraph's way to wait for a human: an Exception, of all things."""
    from langgraph.errors import GraphInterrupt

    return isinstance(exc, GraphInterrupt)


def raised_command(exc: BaseException) -> Any:
    """Return the Command that a body raised for its parent graph: the tool's result, not its failure."""
    from langgraph.errors import ParentCommand

    return exc.args[0] if isinstance(exc, ParentCommand) else None


def is_addressed(value: Any) -> bool:
    """Tell whether a value that a human sent is an answer to the effect log."""
    return isinstance(value, Mapping) and "decision" in value and _named(value) is not None


def was_refused(guard: Guard, row: EffectRow) -> bool:
    """Tell whether a human told this task that an effect failed."""
    return guard.place is not None and f"{guard.place.task_id}/{_REFUSED}" in row.asked


def refusal(row: EffectRow) -> EffectError:
    """Return the error that ends a call whose effect a human declared failed."""
    return EffectError(
        f"effect {show_ulid(row.effect_id)} ({row.tool!r}) was declared failed by a human: it did not take place, and "
        "is not tried again here"
    )


async def note_waiting(guard: Guard, row: EffectRow) -> None:
    """Note that this task waits for a decision on a twin, so that it finds that one decided when it runs again."""
    if guard.place is not None:
        await ops.remember(guard.db, row.effect_id, [f"{guard.place.task_id}/{_WAITING}"])


async def heed(guard: Guard, row: EffectRow) -> bool:
    """Do what the answers say that came to this task's question about an unknown effect.

    Returns:
        Whether the effect was moved, by this task or another, so that it is to be looked at again.

    Raises:
        EffectError: The answer is that the effect failed, and is not to be tried here again.
    """
    place = guard.place
    if place is None:
        return False
    answers = place.execution.take_answers(is_addressed)
    if _question(place, row) not in row.asked:
        return False
    for answer in answers:
        named = _named(answer)
        if named == row.effect_id:
            guard.problem = _problem(answer, row, DECISIONS)
            if guard.problem is None:
                await _decide(guard, row, answer)
                return True
        elif named is not None:
            other = await ops.get_effect(guard.db, named)
            if guard.is_alone:
                guard.problem = (
                    f"that answer was for effect {answer['effect']}, this question is about another"
                )
            if other is not None and _is_asked(other) and _problem(answer, other, DECISIONS) is None:
                # The caller took the one interrupt for the other: what was decided is plain all the same.
                await _decide(guard, other, answer, elsewhere=True)
    return False


async def ask(guard: Guard, row: EffectRow) -> NoReturn:
    """Ask a human what became of an effect: the graph waits for the answer by LangGraph's interrupt."""
    await _ask(guard, row, f"Did {row.tool} take place?", DECISIONS)


async def ask_about_fork(guard: Guard, row: EffectRow) -> str:
    """Ask a human what another branch gets that comes to a finished effect: "replay" or "new", or the graph waits."""
    place = guard.place
    assert place is not None  # noqa: S101 (there is no fork outside of a graph)
    for decision in FORK_DECISIONS:
        if f"{place.task_id}/{decision}" in row.asked:
            return decision
    answers = place.execution.take_answers(is_addressed)
    if _question(place, row) in row.asked:
        for answer in answers:
            if _named(answer) != row.effect_id:
                continue
            guard.problem = _problem(answer, row, FORK_DECISIONS)
            if guard.problem is None:
                decision = str(answer["decision"])
                await ops.remember(guard.db, row.effect_id, [f"{place.task_id}/{decision}"])
                return decision
    question = f"{row.tool} took place on another branch: its outcome again, or anew?"
    return await _ask(guard, row, question, FORK_DECISIONS)


async def _ask(guard: Guard, row: EffectRow, question: str, decisions: Sequence[str]) -> NoReturn:
    from langgraph.errors import GraphInterrupt
    from langgraph.types import Interrupt

    place = guard.place
    assert place is not None  # noqa: S101 (outside of a graph nobody can be asked)
    answers = place.execution.take_answers(is_addressed)
    seen = [_seen(answer) for answer in answers if _named(answer) == row.effect_id]
    is_answer_due = guard.is_alone and _question(place, row) in row.asked
    if (
        guard.problem is None
        and is_answer_due
        and place.execution.has_unaddressed_answer(place.checkpoint_ns)
    ):
        guard.problem = f"the answer must {_example(row, decisions)}"
    waited = row.state == "unknown" and row.previous_state == "suspended" and row.key == guard.call.key
    if waited and _question(place, row) not in row.asked:
        place.execution.keep_answers(place.send)  # they are the body's, which has not run since
    await ops.remember(guard.db, row.effect_id, [_question(place, row), *seen])
    record = guard.record(row)
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
    if guard.problem is not None:
        shown["problem"] = guard.problem
    raise GraphInterrupt((Interrupt.from_ns(shown, place.checkpoint_ns),))


def _question(place: Place, row: EffectRow) -> str:
    return f"{place.task_id}/{row.fence}"


def _is_asked(row: EffectRow) -> bool:
    """Tell whether some task asked about an unknown effect as it is now."""
    return row.state == "unknown" and any(memory.endswith(f"/{row.fence}") for memory in row.asked)


def _seen(answer: Mapping[str, Any]) -> str:
    """Return what an answer is known again by: what it decides, not the result, which may be of any type."""
    told = [str(answer.get(name)) for name in ("effect", "decision", "note")]
    return f"seen/{digest(told).hex()[:16]}"


def _named(answer: Any) -> Any:
    """Return the effect that an answer names, or None."""
    return parse_ulid(str(answer.get("effect"))) if isinstance(answer, Mapping) else None


def _example(row: EffectRow, decisions: Sequence[str]) -> str:
    """Say what an answer must be."""
    said = f'"decision": {" or ".join(map(repr, decisions))}'
    more = ', "result": ..., "note": ...' if decisions is DECISIONS else ""
    return f'name the effect it is for: {{"effect": {show_ulid(row.effect_id)!r}, {said}{more}}}'


def _problem(answer: Mapping[str, Any], row: EffectRow, decisions: Sequence[str]) -> str | None:
    """Say why an answer that names an effect does not decide on it."""
    if answer["decision"] not in decisions:
        return f"the answer must {_example(row, decisions)}"
    attempts = answer.get("attempts")
    if attempts is None and _seen(answer) in row.asked:
        return f'that answer was given before: add "attempts": {row.attempts} if it is for this attempt too'
    if attempts is not None and attempts != row.attempts:
        return f"that answer was for attempt {attempts!r}, this question is about attempt {row.attempts}"
    return None


async def _decide(
    guard: Guard, row: EffectRow, answer: Mapping[str, Any], *, elsewhere: bool = False
) -> None:
    """Do what an answer says to the effect that it names."""
    from langgraph_durable.effects._unknown import resolve

    assert guard.place is not None  # noqa: S101 (answers come to tasks)
    decision = answer["decision"]
    finding: Finding | None = NotHappened() if decision in ("retry", "failed") else None
    if decision == "happened":
        finding = Happened(answer.get("result"))
    memory = [_seen(answer)]
    if decision == "failed":
        asker = row.task_id if elsewhere else guard.place.task_id
        memory.append(f"{asker}/{_REFUSED}")
    note = answer.get("note")
    # An answer that moved the effect and is not remembered could come again, and move it again; one that is remembered
    # and did not move it would be refused when the task is run again.
    moved = await resolve(
        guard.db,
        guard.serde,
        row,
        finding,
        source="human",
        actor="human",
        reason=f"{decision}: {note}" if note else str(decision),
        memory=memory,
    )
    if moved and decision == "failed" and not elsewhere:
        raise refusal(row)
