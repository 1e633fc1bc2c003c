"""What a prune keeps: the checked arguments of `prune` and `prune_all`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langgraph_durable._validation import require_age
from langgraph_durable.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class Policy:
    """What a prune keeps."""

    keep_last: int
    """The number of checkpoints that each namespace keeps; 0 deletes the thread."""
    older_than: timedelta | None


def require_policy(strategy: Any, keep_last: Any, older_than: Any) -> Policy:
    """Return the policy of `prune`.

    Raises:
        InvalidConfigError: The strategy is unknown, or a number or an age is invalid.
    """
    if strategy == "delete_all":  # the Agent Server's name for it
        strategy = "delete"
    if strategy not in ("keep_latest", "delete"):
        raise InvalidConfigError(f'unknown prune strategy {strategy!r}: pass "keep_latest" or "delete"')
    older_than = require_age(older_than, "older_than")
    if keep_last is not None and (
        isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1
    ):
        raise InvalidConfigError(
            f'keep_last must be an int >= 1, got {keep_last!r:.200}. To keep none, pass strategy="delete"'
        )
    if strategy == "delete":
        if keep_last is not None or older_than is not None:
            raise InvalidConfigError(
                'strategy="delete" deletes everything: it takes neither keep_last nor older_than'
            )
        return Policy(0, None)
    return Policy(1 if keep_last is None else keep_last, older_than)


def require_prune_all_policy(keep_last: Any, older_than: Any) -> Policy:
    """Return the policy of `prune_all`.

    Raises:
        InvalidConfigError: Neither argument is given, or one is invalid.
    """
    if keep_last is None and older_than is None:
        raise InvalidConfigError(
            "prune_all needs to know what it may delete: pass older_than=timedelta(...), keep_last=..., or both"
        )
    return require_policy("keep_latest", keep_last, older_than)
