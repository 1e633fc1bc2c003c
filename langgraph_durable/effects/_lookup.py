"""Finds the effect log of a saver."""

from __future__ import annotations

import threading
from typing import Any

from langgraph_durable._context import SaverContext
from langgraph_durable.effects._protocol.executor import EffectExecutor, HasSerde
from langgraph_durable.effects.log import EffectLog
from langgraph_durable.errors import InvalidConfigError

_creating = threading.Lock()


def log_of(context: SaverContext, saver: HasSerde) -> EffectLog:
    """Return the effect log of a saver and its clones, always the same one."""
    with _creating:
        log: EffectLog | None = context.parts.get("effects")
        if log is None:
            log = context.parts["effects"] = EffectLog(EffectExecutor(context, saver))
    return log


def log_in(saver: Any) -> EffectLog:
    """Return the effect log of a graph's saver, also behind a proxy that forwards unknown names.

    Raises:
        InvalidConfigError: The graph's checkpointer is not a DurableSaver.
    """
    log = getattr(saver, "effects", None)
    if not isinstance(log, EffectLog):
        raise InvalidConfigError(
            f"an effect log needs a DurableSaver, got {type(saver).__name__}. Compile the graph with "
            "checkpointer=DurableSaver.from_conn_string(...)"
        )
    return log
