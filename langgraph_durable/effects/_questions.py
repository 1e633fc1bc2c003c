"""Questions to a human, by LangGraph's interrupts, and what LangGraph raises through a body.

An interrupt's answer is found by counting: the n-th `interrupt()` of a task gets the n-th answer. A question of ours
that one execution of a task asks, and the next does not because it was answered, would shift the answers of the tool's
own interrupts. So the effect remembers each question of each task, and every later execution of the task spends as
many interrupts before anything else. A question holds the effect's fence: its answer counts only as long as nobody
else moved the effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langgraph_durable import _effects_ops as ops
from langgraph_durable._effects_ops import EffectRow
from langgraph_durable._ulids import parse_ulid, show_ulid
from langgraph_durable.effects.policy import Finding, Happened, NotHappened
from langgraph_durable.errors import EffectError

if TYPE_CHECKING:
    from langgraph_durable.effects._guard import Guard

_WAITING = "waiting"
"""In place of a question's number: none was asked, and so no interrupt is to be spent."""

DECISIONS = ("happened", "retry", "failed", "abandon")


def is_interrupt(exc: BaseException) -> bool:
    """Tell whether an exception is LangGraph's way to wait for a human: an Exception, of all things."""
    from langgraph.errors import GraphInterrupt

    return isinstance(exc, GraphInterrupt)


def raised_command(exc: BaseException) -> Any:
    """Return the Command that a body raised for its parent graph: the tool's result, not its failure."""
    from langgraph.errors import ParentCommand

    return exc.args[0] if isinstance(exc, ParentCommand) else None


def of_task(guard: Guard, row: EffectRow) -> list[str]:
    """Return the questions that earlier executions of this task asked about an effect, or about a twin of it."""
    if guard.place is None:
        return []
    mine = [question for question in row.asked if question.split("/")[0] == guard.place.task_id]
    return [question for question in mine if not question.endswith(_WAITING)]


async def note_waiting(guard: Guard, row: EffectRow) -> None:
    """Note that this task waits for a decision on a twin, so that it finds that one decided when it runs again."""
    if guard.place is not None:
        question = f"{guard.place.task_id}/{row.fence}/{_WAITING}"
        if question not in row.asked:
            await ops.record_question(guard.db, row.effect_id, question)


async def pass_over(guard: Guard, row: EffectRow) -> bool:
    """Spend the interrupts that earlier executions of this task spent on an effect, and heed their answers.

    Returns:
        Whether an answer moved an effect, so that this one is to be looked at again.

    Raises:
        EffectError: The last answer says that the effect failed, and is not to be tried here again.
    """
    place = guard.place
    if place is None or not row.asked or place.execution.count(("passed over", row.effect_id)):
        return False
    moved, decision = False, None
    for question in of_task(guard, row):
        _, fence, _ = question.split("/")
        try:
            answer = _interrupt(guard, row, None)
        except Exception as exc:
            if not is_interrupt(exc) or row.state == "unknown":
                raise
            # Decided otherwise meanwhile: nobody answered, so next time no answer is there to be passed over.
            await ops.forget_question(guard.db, row.effect_id, question)
            continue
        decision = answer.get("decision") if isinstance(answer, Mapping) else None
        if row.state == "unknown" and row.fence == int(fence):
            guard.problem = await _heed(guard, row, answer)
            moved = guard.problem is None or moved
    if decision == "failed" and not moved:
        await _refuse(guard, row)
    return moved


async def ask(guard: Guard, row: EffectRow) -> None:
    """Ask a human what became of an effect; the graph waits for the answer by LangGraph's interrupt."""
    assert guard.place is not None  # noqa: S101 (outside of a graph nobody can be asked)
    guard.place.execution.count(("passed over", row.effect_id))
    asked = len(row.asked)
    while True:
        question = f"{guard.place.task_id}/{row.fence}/{asked}"
        await ops.record_question(guard.db, row.effect_id, question)
        guard.problem = await _heed(guard, row, _interrupt(guard, row, guard.problem))
        if guard.problem is None:
            return
        asked += 1


def _interrupt(guard: Guard, row: EffectRow, problem: str | None) -> Any:
    from langgraph.types import interrupt

    record = guard.record(row)
    question = {
        "question": f"Did {record.tool} take place?",
        "effect": record.effect_id,
        "tool": record.tool,
        "args": record.args,
        "attempts": record.attempts,
        "started_at": record.first_attempt_at.isoformat(),
        "error": record.error,
        "decisions": list(DECISIONS),
    }
    return interrupt({**question, "problem": problem} if problem else question)


async def _heed(guard: Guard, row: EffectRow, answer: Any) -> str | None:
    """Do what an answer says to the effect that it names; say what is wrong if it does not decide this one."""
    from langgraph_durable.effects._guard import resolve

    own = show_ulid(row.effect_id)
    example = (
        f'{{"effect": {own!r}, "decision": {" or ".join(map(repr, DECISIONS))}, "result": ..., "note": ...}}'
    )
    if not isinstance(answer, Mapping) or answer.get("decision") not in DECISIONS:
        return f"the answer must be {example}"
    named = parse_ulid(str(answer.get("effect")))
    if named is None:
        return f"the answer must name the effect it is for: {example}"
    target = row if named == row.effect_id else await ops.get_effect(guard.db, named)
    if target is not None and target.state == "unknown":
        decision = answer["decision"]
        finding: Finding | None = NotHappened() if decision in ("retry", "failed") else None
        if decision == "happened":
            finding = Happened(answer.get("result"))
        note = answer.get("note")
        reason = f"{decision}: {note}" if note else str(decision)
        await resolve(guard.db, guard.serde, target, finding, source="human", actor="human", reason=reason)
    if named != row.effect_id:
        return f"that answer was for effect {show_ulid(named)}, this question is about {own}"
    if answer["decision"] == "failed":
        await _refuse(guard, row)
    return None


async def _refuse(guard: Guard, row: EffectRow) -> None:
    """End the call as failed, as a human said; give back the claim that this execution may hold."""
    if row.state in ("claimed", "issued"):
        await ops.move_effect(
            guard.db,
            row.effect_id,
            ops.Outcome("failed", source="human", error="declared failed by a human"),
            origins=["claimed", "issued"],
            actor="human",
            fence=row.fence,
        )
    raise EffectError(
        f"effect {show_ulid(row.effect_id)} ({row.tool!r}) was declared failed by a human: it did not take place, and "
        "is not tried again here"
    )
