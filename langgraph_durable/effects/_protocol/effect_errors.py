"""The errors about recorded effects: what is known of the effect, and the ways on, in code and on the command line.

Each function returns the error. The errors' classes add the link to docs/errors.md.
"""

from __future__ import annotations

from datetime import timedelta

from langgraph_durable._checkpoints.ulids import format_ulid
from langgraph_durable.effects._protocol.attempt import describe as describe
from langgraph_durable.effects._protocol.final import DeclaredFailedError
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.errors import (
    EffectAbandonedError,
    EffectConflictError,
    EffectError,
    EffectForkedError,
    EffectInFlightError,
    EffectSupersededError,
    EffectUnknownError,
)

_COMMAND = "langgraph-durable effects"


def unknown(row: EffectRow, cause: Exception | None = None) -> EffectUnknownError:
    """Return the error of a call whose earlier attempt may have taken place."""
    effect_id = format_ulid(row.effect_id)
    why = f" verify could not tell ({safe_text(cause)})." if cause is not None else ""
    last = f" Last error: {row.error}." if row.error else ""
    return EffectUnknownError(
        f"{describe(row)} was attempted {_times(row.attempts)}, and it is unknown whether it took place.{last}{why} "
        f"Nothing runs until that is decided. Find out, and decide: {_decide(row)}. Then run the graph again. "
        f"To decide automatically, give its policy a verify= or another on_unknown=",
        effect_id,
    )


def timed_out(row: EffectRow, timeout: timedelta) -> EffectUnknownError:
    """Return the error of a call whose body was cancelled because it took too long."""
    return EffectUnknownError(
        f"{describe(row)} did not end within the timeout= of its policy ({timeout}) and was cancelled. It may have "
        f"taken place. Find out, and decide: {_decide(row)}. Then run the graph again",
        format_ulid(row.effect_id),
    )


def conflict(row: EffectRow) -> EffectConflictError:
    """Return the error of a call that comes with other arguments than those recorded."""
    return EffectConflictError(
        f"{describe(row)} was recorded with other arguments, and is {row.state}. Nothing was run. "
        f"{_look(row)} If the code changed, run the thread with the arguments as recorded. If these are two effects, "
        "give @effect a key= that contains what tells them apart, or the calls of saver.effects other keys",
        format_ulid(row.effect_id),
    )


def in_flight(row: EffectRow) -> EffectInFlightError:
    """Return the error of a call that waited for another attempt, which has not ended."""
    effect_id = format_ulid(row.effect_id)
    return EffectInFlightError(
        f"{describe(row)} is still in flight at {row.owner}, which renews its lease (until {row.lease_until}). Run the "
        "graph again later. If that owner hangs, decide in its place: "
        f"saver.effects.resolve({effect_id!r}, decision, force=True), or "
        f"`{_COMMAND} resolve {effect_id} DECISION --force`. A timeout= in the policy ends such attempts",
        effect_id,
    )


def abandoned(row: EffectRow) -> EffectAbandonedError:
    """Return the error of a call whose effect was given up by a decision."""
    effect_id = format_ulid(row.effect_id)
    return EffectAbandonedError(
        f"{describe(row)} was abandoned by a decision: it does not count as done, and is never tried again. "
        f"Who decided: saver.effects.history({effect_id!r}), or `{_COMMAND} show {effect_id}`. Lead the graph past the "
        "call, with graph.update_state and a ToolMessage that answers it",
        effect_id,
    )


def declared_failed(row: EffectRow) -> DeclaredFailedError:
    """Return the error of a call whose effect a human declared failed."""
    effect_id = format_ulid(row.effect_id)
    return DeclaredFailedError(
        f"{describe(row)} was declared failed by a human: it did not take place, and this task does not try it again. "
        f"Who decided: saver.effects.history({effect_id!r}), or `{_COMMAND} show {effect_id}`. Lead the graph past the "
        "call, with graph.update_state and a ToolMessage that answers it. A new request runs it",
        effect_id,
        see="declared-failed",
    )


def forked(row: EffectRow) -> EffectForkedError:
    """Return the error of a call whose effect took place on another branch."""
    return EffectForkedError(
        f"{describe(row)} took place on another branch of the thread's history, and its policy has "
        f'on_fork="raise". {_look(row)} Continue that branch, or use on_fork="replay", "new" or "ask"',
        format_ulid(row.effect_id),
    )


def superseded(row: EffectRow, ended: str, now: EffectRow | None) -> EffectSupersededError:
    """Return the error of an owner whose report came after another took the effect over."""
    found = (
        f"is {now.state} (owner: {now.owner}, attempts: {now.attempts})"
        if now is not None
        else "is not stored"
    )
    return EffectSupersededError(
        f"{describe(row)} ended here as {ended}, but another owner took it over meanwhile. It {found}, and that "
        f"stands. {_look(row)} If both took place, undo one. If bodies are slow or stop for long, raise lease=",
        format_ulid(row.effect_id),
    )


def result_lost(row: EffectRow) -> EffectError:
    """Return the error of a replay whose result could not be stored."""
    return EffectError(
        f"{describe(row)} took place, but its result could not be stored ({row.error}). It is not run again. "
        f"{_give_result(row)} To avoid this, make the tool return plain data",
        format_ulid(row.effect_id),
        see="result-lost",
    )


def result_expired(row: EffectRow) -> EffectError:
    """Return the error of a replay whose result was deleted by retention."""
    return EffectError(
        f"the result of {describe(row)} has expired. The effect took place, and is not run again. {_give_result(row)}",
        format_ulid(row.effect_id),
        see="result-lost",
    )


def needs_no_decision(row: EffectRow) -> EffectError:
    """Return the error of a decision on an effect that needs none."""
    effect_id = format_ulid(row.effect_id)
    reasons = {
        "issued": f"Its owner {row.owner} renews its lease (until {row.lease_until}). If that owner hangs, decide "
        f"with force=True, or `{_COMMAND} resolve {effect_id} DECISION --force`",
        "claimed": "Nothing was sent yet. Once its owner's lease ends, the next call takes it over",
        "suspended": "It waits for a human's answer to the tool's own interrupt(). Resume the graph with the answer",
        "completed": f"It took place. {_look(row)} Only a lost or expired result can be given, as Happened(result)",
        "failed": "It did not take place. The next call tries it again",
        "abandoned": "It was given up, and stays so",
    }
    return EffectError(
        f"{describe(row)} is {row.state} and needs no decision. "
        + reasons.get(row.state, "Others moved it meanwhile. Decide again"),
        effect_id,
        see="not-to-be-decided",
    )


def safe_text(exc: BaseException | None) -> str:
    """Return an exception as text, also if its __str__ raises."""
    try:
        return str(exc)
    except Exception as failure:
        return f"<no text: {type(failure).__name__} in __str__>"


def _decide(row: EffectRow) -> str:
    effect_id = format_ulid(row.effect_id)
    return (
        f'saver.effects.resolve({effect_id!r}, Happened(result)), or "not_happened", "failed" or "abandon" in place of '
        f"it; or `{_COMMAND} resolve {effect_id} happened --result JSON`"
    )


def _give_result(row: EffectRow) -> str:
    effect_id = format_ulid(row.effect_id)
    return (
        f"Give the result, and run the graph again: saver.effects.resolve({effect_id!r}, Happened(result)), or "
        f"`{_COMMAND} resolve {effect_id} happened --result JSON`."
    )


def _look(row: EffectRow) -> str:
    effect_id = format_ulid(row.effect_id)
    return f"Look at it: saver.effects.get({effect_id!r}), or `{_COMMAND} show {effect_id}`."


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
