"""The SQL statements of the effect log, loaded from `sql/`.

Time is the server's, because workers' clocks may be off. Each statement that changes an effect adds to effect_events
in the same statement.
"""

from __future__ import annotations

from typing import Any

from langgraph_durable._postgres.statement import Statement, load

_PACKAGE = "langgraph_durable.effects._storage"
_FRAGMENTS = ("candidate", "same_place", "relations", "effect_columns", "flush_at_commit")
"""Files of SQL that several statements include by `{name}`."""


def _load(name: str) -> Statement:
    text: Any = load(_PACKAGE, name).text
    for fragment in _FRAGMENTS:
        text = text.replace("{{" + fragment + "}}", load(_PACKAGE, fragment).text)
    return Statement(text)


CLAIM = _load("claim")
CREATE = _load("create")
MOVE = _load("move")
COMPLETE = _load("complete")
RESTORE_RESULT = _load("restore_result")
RECORD_REFUSAL = _load("record_refusal")
RENEW = _load("renew_leases")
ADD_NOTES = _load("add_notes")
FIND_COMPLETED = _load("find_completed")
GET_EFFECT = _load("get_effect")
GET_RESULT = _load("get_result")
LIST_EVENTS = _load("list_events")
LIST_EFFECTS = _load("list_effects")
LIST_STRANDED = _load("list_stranded")
LIST_CHECKPOINT_EFFECTS = _load("list_checkpoint_effects")
FIND_FAMILY = _load("find_family")
FIND_CANDIDATES = _load("find_candidates")
ADOPT = _load("adopt")
RECORD_DELIVERY = _load("record_delivery")
ACKNOWLEDGE = _load("acknowledge")
GET_WRITE_CHANNELS = _load("get_write_channels")
CHECKPOINT_EXISTS = _load("checkpoint_exists")
FIND_CALL_EFFECTS = _load("find_call_effects")
LIST_BRANCH_WRITES = _load("list_branch_writes")
