"""What became of an effect whose step was abandoned: its owner is waited for, its provider or a human is asked."""

from __future__ import annotations

import logging
import time

from langgraph_durable.effects._healing.branch import Branch
from langgraph_durable.effects._identity.location import parent_ns
from langgraph_durable.effects._protocol import questions, recovery
from langgraph_durable.effects._protocol.attempt import EffectCall, describe, owner
from langgraph_durable.effects._protocol.suspended import declare_unknown
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import EffectRow
from langgraph_durable.errors import EffectError, EffectUnknownError

_logger = logging.getLogger("langgraph_durable")

_FIRST_WAIT = 0.01
_LONGEST_WAIT = 0.5


async def find_out(call: EffectCall, row: EffectRow) -> EffectRow:
    """Return an effect, once it is known what became of it, or that it cannot be found out now.

    It is never run again here: if the provider or a human says that it did not take place, it has failed.

    Args:
        call: Made by `EffectExecutor.recovery_call`.
        row: The effect.

    Raises:
        GraphInterrupt: A human is asked.
    """
    deadline = time.monotonic() + call.policy.wait_timeout.total_seconds()
    delay = _FIRST_WAIT
    while True:
        if row.state == "unknown":
            if not await _recover(call, row, deadline):
                return row
        elif row.state == "suspended" and row.previous_state != "claimed" and call.policy.verify is not None:
            await declare_unknown(call, row)
        elif row.state == "issued" or (row.state == "claimed" and not _is_expired(row)):
            if not await store.expire_effect(call.db, row, owner()):
                if time.monotonic() + delay > deadline:
                    return row
                await call.db.sleep(delay)
                delay = min(delay * 2, _LONGEST_WAIT)
        else:
            return row
        row = await store.get_effect(call.db, row.effect_id) or row


async def _recover(call: EffectCall, row: EffectRow, deadline: float) -> bool:
    """Verify an unknown effect, or ask a human; return whether it has to be read again."""
    if call.place is not None and call.policy.on_unknown == "ask":
        try:
            if await questions.apply_answers(call, row):
                return True
        except EffectError:  # the answer is that it failed
            return True
    elif call.policy.on_unknown == "retry":  # a human is not asked for what only a retry would settle
        call.policy = call.policy.replace(on_unknown="raise")
    try:
        await recovery.recover(call, row, deadline, run_again=False)
    except EffectUnknownError as exc:
        if exc.__cause__ is not None:
            _logger.warning("cannot verify %s: %s", describe(row), exc.__cause__)
        return False
    return True


def _is_expired(row: EffectRow) -> bool:
    return row.lease_until is not None and row.lease_until < row.now


def is_elsewhere(row: EffectRow, branch: Branch) -> bool:
    """Return whether an effect took place on another branch, or before a fork or an update of this one."""
    where = (parent_ns(row.checkpoint_ns or ""), row.checkpoint_id or "")
    return where not in branch.sources or branch.sources[where] in ("update", "fork")
