"""Claims that meet other processes between their snapshot and their write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from langgraph_durable import DurableSaver
from langgraph_durable._postgres.database import run_sync
from langgraph_durable.effects._storage import store
from langgraph_durable.effects._storage.rows import (
    Claim,
    ClaimKind,
    EffectRequest,
    EffectRow,
    Note,
    NoteKind,
    Outcome,
    Transition,
)
from langgraph_durable.errors import EffectInFlightError

SCHEMA = "langgraph_durable"
REQUEST = EffectRequest(b"key", "pay", "key", b"hash", lambda: None, task_id="task")


@pytest.fixture
def other(conninfo: str) -> Iterator[psycopg.Connection]:
    """Another process."""
    with psycopg.connect(conninfo) as connection:
        yield connection


def claim(saver: DurableSaver) -> tuple[ClaimKind, EffectRow]:
    terms = Claim(
        store.new_effect_id(), "issued", "me", timedelta(hours=1), check_duplicates=False, resumes=False
    )
    return run_sync(store.claim_effect(saver.durable_context.db, REQUEST, terms))


def fail(saver: DurableSaver, row: EffectRow) -> None:
    transition = Transition(Outcome("failed", error="declined"), ["issued"], "me", fence=row.fence)
    assert run_sync(store.move_effect(saver.durable_context.db, row.effect_id, transition)) is not None


def await_lock(conninfo: str) -> None:
    """Wait until a claim waits for another transaction."""
    deadline = time.monotonic() + 20
    with psycopg.connect(conninfo, autocommit=True) as connection:
        while time.monotonic() < deadline:
            waiting = connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            if waiting is not None:
                return
            time.sleep(0.01)
    pytest.fail("no claim waits")


@pytest.mark.parametrize("refused", ["task", "another task"])
def test_a_refusal_that_commits_during_a_claim_is_obeyed(
    saver: DurableSaver, conninfo: str, other: psycopg.Connection, refused: str
) -> None:
    kind, row = claim(saver)
    assert kind is ClaimKind.CLAIMED
    fail(saver, row)
    note = Note(NoteKind.REFUSED.value, refused)
    other.execute(
        f"INSERT INTO {SCHEMA}.effect_notes (effect_id, kind, task_id) VALUES (%s, %s, %s)",
        (row.effect_id, note.kind, note.task_id),
    )
    other.execute(f"UPDATE {SCHEMA}.effects SET note_count = note_count + 1")
    with ThreadPoolExecutor(1) as pool:
        claiming = pool.submit(claim, saver)
        try:
            await_lock(conninfo)
        finally:
            other.commit()
        kind, _ = claiming.result(30)
    assert kind is ClaimKind.EXISTING
    kind, found = claim(saver)
    assert note in found.notes
    assert kind is (ClaimKind.EXISTING if refused == "task" else ClaimKind.CLAIMED)


def test_a_claim_that_never_succeeds_ends_with_an_error(
    saver: DurableSaver, other: psycopg.Connection
) -> None:
    other.execute(
        f"CREATE FUNCTION {SCHEMA}.lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    other.execute(
        f"CREATE TRIGGER lose BEFORE INSERT ON {SCHEMA}.effects FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.lose()"
    )
    other.commit()
    with pytest.raises(EffectInFlightError, match=r"'pay' could not be claimed.*or run again"):
        claim(saver)


def test_the_hash_of_a_result_is_shown_after_it_expired(saver: DurableSaver) -> None:
    log = saver.effects
    for key in ("one", "two"):
        with log.effect("pay", key=key) as e:
            e.complete({"paid": 7})
    saver.prune_all(keep_last=1, effects_older_than=timedelta(0))
    one, two = log.list()
    assert one.args is None
    assert one.output_hash == two.output_hash
    assert len(one.output_hash or "") == 64
