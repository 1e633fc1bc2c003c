"""The law of effects: whatever two workers do, in any order, an effect is retried only for a recorded reason.

Random orders of claims, reports, leases that end, decisions and late arrivals, on one effect; real Postgres.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from langgraph_durable import DurableSaver
from langgraph_durable._postgres.database import run_sync
from langgraph_durable._postgres.drivers import BlockingDatabase
from langgraph_durable._postgres.statement import Statement
from langgraph_durable.effects._storage import statements as _effect_statements
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.rows import (
    Claim,
    ClaimKind,
    EffectRequest,
    EffectRow,
    Outcome,
    Transition,
)
from langgraph_durable.effects.records import TRANSITIONS, State
from tests.conftest import Databases

EXAMPLES = int(os.environ.get("DURABLE_EFFECT_EXAMPLES", "100"))
STEPS = 30
SCHEMA = "langgraph_durable"
LEASE = timedelta(hours=1)

_keys = itertools.count()
workers = st.sampled_from(["one", "two"])


class Seen(NamedTuple):
    """An effect as it is stored, without its times."""

    state: State
    previous: State | None
    fence: int
    attempts: int
    generation: int
    events: list[tuple[str | None, str, int, int]]


class Effects(RuleBasedStateMachine):
    """One effect, two workers, and a decider."""

    db: BlockingDatabase
    connection: psycopg.Connection[Any]

    def __init__(self) -> None:
        super().__init__()
        self.request = EffectRequest(b"%d" % next(_keys), "pay", "key", b"hash", lambda: None)
        self.effect_id = ops.new_effect_id()
        self.held: dict[str, list[EffectRow]] = {"one": [], "two": []}
        self.before: Seen | None = None
        self.sent_under: list[int] = []
        """The fences under which something may have been sent."""
        self.excused_until = 0
        """The highest fence that a definite end, a human or a policy gave leave to send under."""

    # --- what workers do ---

    @rule(worker=workers, state=st.sampled_from(["claimed", "issued"]), resumes=st.booleans())
    def claim(self, worker: str, state: State, resumes: bool) -> None:
        before = self.look()
        ended = self.lease_ended()
        kind, row = run_sync(
            ops.claim_effect(
                self.db,
                self.request,
                Claim(self.id_for_claim(), state, worker, LEASE, check_duplicates=False, resumes=resumes),
            )
        )
        self.effect_id = row.effect_id
        if kind is not ClaimKind.CLAIMED:
            assert before is not None
            assert before.state != "failed"
            assert before.state != "suspended" or not (resumes or before.previous == "claimed")
            assert not (before.state == "claimed" and ended)
            return
        assert row.owner == worker
        if before is not None and before.state == "suspended":
            assert resumes or before.previous == "claimed"
        assert (
            before is None or before.state in ("failed", "suspended") or (before.state == "claimed" and ended)
        )
        # Nothing was sent, or it definitely failed, or the tool waits for a human with what it has not yet sent.
        self.may_send(row)
        self.held[worker].append(row)

    def id_for_claim(self) -> Any:
        return self.effect_id if self.look() is None else ops.new_effect_id()

    @precondition(lambda self: self.claims())
    @rule(worker=workers, which=st.integers(0, 3))
    def issue(self, worker: str, which: int) -> None:
        self.report(worker, which, Outcome("issued"), ["claimed"])

    @precondition(lambda self: self.claims())
    @rule(worker=workers, which=st.integers(0, 3), late=st.booleans())
    def complete(self, worker: str, which: int, late: bool) -> None:
        origins: list[State] = ["claimed", "issued", "unknown"] if late else ["claimed", "issued"]
        self.report(worker, which, Outcome("completed", source="executed", result=("null", b"")), origins)

    @precondition(lambda self: self.claims())
    @rule(worker=workers, which=st.integers(0, 3))
    def fail(self, worker: str, which: int) -> None:
        self.report(worker, which, Outcome("failed", error="declined"), ["claimed", "issued", "unknown"])

    @precondition(lambda self: self.claims())
    @rule(worker=workers, which=st.integers(0, 3))
    def suspend(self, worker: str, which: int) -> None:
        self.report(worker, which, Outcome("suspended"), ["claimed", "issued"])

    @precondition(lambda self: self.claims())
    @rule(worker=workers, which=st.integers(0, 3))
    def lose_the_answer(self, worker: str, which: int) -> None:
        self.report(worker, which, Outcome("unknown", error="time-out"), ["issued"])

    def report(self, worker: str, which: int, outcome: Outcome, origins: list[State]) -> None:
        """Report an outcome by a claim of any age: by the last, or late by one that was taken over."""
        if not self.held[worker]:
            return
        row = self.held[worker][-1 - which % len(self.held[worker])]
        before = self.look()
        assert before is not None
        moved = run_sync(
            ops.move_effect(
                self.db,
                self.effect_id,
                Transition(outcome, origins, worker, fence=row.fence, lease=LEASE),
            )
        )
        allowed = before.fence == row.fence and before.state in origins
        assert (moved is not None) == allowed
        if moved is not None:
            assert moved.state == outcome.state
            assert moved.fence == row.fence
        else:
            run_sync(ops.record_refusal(self.db, self.effect_id, row.fence, worker, "refused"))

    @precondition(lambda self: self.claims())
    @rule(worker=workers)
    def renew(self, worker: str) -> None:
        if self.held[worker]:
            row = self.held[worker][-1]
            run_sync(ops.renew_leases(self.db, [(row.effect_id, row.fence, LEASE)]))

    # --- time and decisions ---

    @precondition(lambda self: self.state_in("claimed", "issued"))
    @rule()
    def lease_ends(self) -> None:
        self.connection.execute(
            f"UPDATE {SCHEMA}.effects SET lease_until = now() - interval '1 second' WHERE effect_id = %s",
            (self.effect_id,),
        )

    @precondition(lambda self: self.claims())
    @rule(worker=workers)
    def expire(self, worker: str) -> None:
        before, ended = self.look(), self.lease_ended()
        assert before is not None
        outcome = Outcome("unknown", error="lease expired")
        moved = run_sync(
            ops.move_effect(self.db, self.effect_id, Transition(outcome, ["issued"], worker, expired=True))
        )
        assert (moved is not None) == (before.state == "issued" and ended)

    @precondition(lambda self: self.state_in("suspended"))
    @rule(worker=workers)
    def doubt(self, worker: str) -> None:
        before = self.look()
        assert before is not None
        outcome = Outcome("unknown", error="it waited")
        moved = run_sync(
            ops.move_effect(
                self.db,
                self.effect_id,
                Transition(outcome, ["suspended"], worker, fence=before.fence, keeps_key=True),
            )
        )
        assert moved is not None

    @precondition(lambda self: self.state_in("unknown"))
    @rule(
        state=st.sampled_from(["completed", "failed", "abandoned"]),
        source=st.sampled_from(["verified", "human"]),
        stale=st.booleans(),
    )
    def decide(self, state: State, source: str, stale: bool) -> None:
        before = self.look()
        assert before is not None
        moved = run_sync(
            ops.move_effect(
                self.db,
                self.effect_id,
                Transition(
                    Outcome(state, source=source),
                    ["unknown"],
                    source,
                    fence=before.fence - stale,
                    new_owner=state != "completed",
                ),
            )
        )
        assert (moved is None) == stale

    @precondition(lambda self: self.state_in("unknown"))
    @rule(worker=workers)
    def take_over_as_idempotent(self, worker: str) -> None:
        before = self.look()
        assert before is not None
        moved = run_sync(
            ops.move_effect(
                self.db,
                self.effect_id,
                Transition(
                    Outcome("issued"),
                    ["unknown"],
                    worker,
                    fence=before.fence,
                    new_owner=True,
                    lease=LEASE,
                    claim_id=ops.new_effect_id(),
                ),
            )
        )
        assert moved is not None
        assert (moved.fence, moved.attempts) == (before.fence + 1, before.attempts + 1)
        assert moved.generation == before.generation  # the vendor must know it again
        self.may_send(moved)
        self.held[worker].append(moved)

    # --- the law ---

    @invariant()
    def holds(self) -> None:
        now, before = self.look(), self.before
        self.before = now
        if now is None:
            assert before is None
            return
        new = now.events[len(before.events) :] if before is not None else now.events
        state, fence = (before.state, before.fence) if before is not None else (None, 0)
        for origin, to, event_fence, _ in new:
            assert origin == state
            if origin is None:
                assert to in ("claimed", "issued")
            elif origin == to and event_fence <= fence:
                continue  # a refusal: nothing moved, the fence of its late owner is noted
            else:
                assert to in TRANSITIONS[origin]
            assert event_fence >= fence
            state, fence = to, event_fence  # type: ignore[assignment]
        assert (state, fence) == (now.state, now.fence)
        if before is not None:
            assert now.events[: len(before.events)] == before.events
            assert now.attempts >= before.attempts
            assert now.generation >= before.generation
            # A new key for the vendor only after what definitely failed.
            assert now.generation == before.generation or before.state == "failed"
        self.each_sending_has_its_reason(now.events)

    @staticmethod
    def each_sending_has_its_reason(events: list[tuple[str | None, str, int, int]]) -> None:
        """Between two sendings there is a definite failure, a tool that waited, or a policy that takes over."""
        open_since: int | None = None
        for origin, to, fence, _ in events:
            if to == "issued" and origin != to:  # alike, they tell of a refusal
                assert open_since in (None, fence) or origin == "unknown"
                open_since = fence
            elif to in ("failed", "suspended") and origin != to:
                open_since = None

    # --- looking ---

    def may_send(self, row: EffectRow) -> None:
        """Note a leave to send; two of one fence would be two owners."""
        assert row.fence not in self.sent_under
        self.sent_under.append(row.fence)

    def look(self) -> Seen | None:
        row = self.connection.execute(
            f"SELECT state, previous_state, fence, attempts, generation FROM {SCHEMA}.effects WHERE key = %s",
            (self.request.key,),
        ).fetchone()
        if row is None:
            return None
        events = self.connection.execute(
            f"SELECT from_state, to_state, fence, attempt FROM {SCHEMA}.effect_events WHERE effect_id = %s "
            "ORDER BY number",
            (self.effect_id,),
        ).fetchall()
        return Seen(row[0], row[1], row[2], row[3], row[4], events)

    def claims(self) -> bool:
        return any(self.held.values())

    def state_in(self, *states: str) -> bool:
        seen = self.before
        return seen is not None and seen.state in states

    def lease_ended(self) -> bool:
        row = self.connection.execute(
            f"SELECT lease_until < now() FROM {SCHEMA}.effects WHERE key = %s", (self.request.key,)
        ).fetchone()
        return bool(row and row[0])


# --- running it ---


@pytest.fixture(scope="module")
def machine(databases: Databases, template: str) -> Iterator[Callable[[int], None]]:
    """Runs the machine for some examples."""
    name = databases.create(template)
    conninfo = databases.conninfo(name)
    with (
        DurableSaver.from_conn_string(conninfo, max_size=1) as saver,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        Effects.db, Effects.connection = saver._db, connection

        def run(examples: int) -> None:
            run_state_machine_as_test(
                Effects,
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    print_blob=False,
                    phases=[Phase.explicit, Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )

        yield run
    databases.drop(name)


def test_effects_keep_the_law(machine: Callable[[int], None]) -> None:
    machine(EXAMPLES)


def changed(statement: Statement, old: str, new: str) -> Statement:
    made = Statement(statement.text.replace(old, new))
    assert made.text != statement.text, old
    return made


MUTANTS = {
    "an expired lease allows a retry": (
        "CLAIM",
        {
            "OR state IN ('completed', 'issued',": "OR state IN ('completed',",
            "WHEN 'claimed' THEN e.lease_until": "WHEN 'issued' THEN true WHEN 'claimed' THEN e.lease_until",
        },
    ),
    "an unknown effect may be claimed": (
        "CLAIM",
        {
            "'issued', 'unknown', 'abandoned'": "'issued', 'abandoned'",
            "WHEN 'failed' THEN true": "WHEN 'unknown' THEN true WHEN 'failed' THEN true",
        },
    ),
    "an effect suspended after it was issued runs again": (
        "CLAIM",
        {
            "AND NOT %(resumes)s::bool": "AND NOT true",
            "OR %(resumes)s::bool": "OR true",
        },
    ),
    "a claim does not raise the fence": ("CLAIM", {"fence = e.fence + 1": "fence = e.fence"}),
    "a claim adds no event": ("CLAIM", {"FROM claimed WHERE CASE": "FROM claimed WHERE false AND CASE"}),
    "any fence may report": ("MOVE", {"OR fence = %(fence)s::bigint": "OR %(fence)s::bigint > 0"}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_law_catches_a_broken_statement(
    machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    name, changes = MUTANTS[mutant]
    statement = getattr(_effect_statements, name)
    for old, new in changes.items():
        statement = changed(statement, old, new)
    monkeypatch.setattr(_effect_statements, name, statement)
    with pytest.raises(AssertionError):
        machine(4 * EXAMPLES)  # it stops at the first that fails
