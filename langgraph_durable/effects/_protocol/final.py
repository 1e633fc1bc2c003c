"""Decisions of a human that end a call for good: the same error at every attempt."""

from __future__ import annotations

from langgraph_durable.errors import EffectAbandonedError, EffectError


class DeclaredFailedError(EffectError):
    """A human declared the effect failed: it did not take place, and the task must not try it again."""


FINAL_ERRORS = (EffectAbandonedError, DeclaredFailedError)
