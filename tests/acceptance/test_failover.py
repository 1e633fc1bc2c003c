"""A failover that loses the newest commits: what a run had stored is gone when it stores its next step."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from langgraph_durable import DurableSaver, ParentMissing
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import CHAIN, Builder, Frequent, Graph, Record, Saver, chain, delta_chain, ignore

THREADS = 40

LOSE = """
WITH lost AS (
    DELETE FROM langgraph_durable.checkpoints WHERE (thread_id, checkpoint_ns, checkpoint_id) IN (
        SELECT thread_id, checkpoint_ns, checkpoint_id FROM langgraph_durable.checkpoints
        WHERE thread_id = %(thread)s ORDER BY ulid DESC LIMIT %(count)s
    ) RETURNING *
), writes AS (
    DELETE FROM langgraph_durable.writes w USING lost l
    WHERE (w.thread_id, w.checkpoint_ns, w.checkpoint_id) = (l.thread_id, l.checkpoint_ns, l.checkpoint_id)
)
DELETE FROM langgraph_durable.channel_values v WHERE v.thread_id = %(thread)s AND (v.channel, v.version) NOT IN (
    SELECT n.channel, n.version FROM langgraph_durable.checkpoints c
    CROSS JOIN unnest(c.value_channels, c.value_versions) AS n (channel, version)
    WHERE c.thread_id = %(thread)s AND c.checkpoint_id NOT IN (SELECT checkpoint_id FROM lost)
    AND n.version IS NOT NULL
)
"""


def lose(conninfo: str, thread_id: str, count: int) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(LOSE, {"thread": thread_id, "count": count})


def frequent(saver: Saver, record: Record) -> Graph:
    return delta_chain(saver, record, Frequent)


def losing(conninfo: str, thread_id: str, count: int) -> Record:
    """Lose the newest checkpoints of a thread as its third node starts."""

    def record(name: str) -> None:
        if name == "third":
            lose(conninfo, thread_id, count)

    return record


async def test_a_delta_channel_with_a_gap_is_refused(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    whole = {"trail": ["input", *CHAIN]}
    for number in range(THREADS):
        config, lost = thread(f"thread {number}"), 1 + number % 2
        graph = delta_chain(saver, losing(conninfo, f"thread {number}", lost))
        with pytest.raises(ParentMissing, match=f"'thread {number}', namespace ''.* run again"):
            await drive.invoke(graph, {"trail": ["input"]}, config, durability="sync")
        left = await drive.history(graph, config)
        assert [s.metadata and s.metadata["step"] for s in left] == [2, 1, 0, -1][lost:]
        again = delta_chain(saver, ignore)
        assert await drive.invoke(again, None, config) == whole
        assert (await drive.state(again, config)).values == whole


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("build", [chain, delta_chain, frequent])
async def test_what_a_run_returns_is_stored_or_it_fails(
    saver: DurableSaver, conninfo: str, drive: Drive, build: Builder, durability: str
) -> None:
    refused = 0
    for number in range(4):
        config = thread(f"thread {number}")
        graph = build(saver, losing(conninfo, f"thread {number}", 1 + number % 2))
        try:
            result: Any = await drive.invoke(graph, {"trail": ["input"]}, config, durability=durability)
        except ParentMissing:
            refused += 1
            # With durability "async" the two newest checkpoints may be all that was stored by then.
            left = await drive.history(graph, config)
            input_ = None if left else {"trail": ["input"]}
            result = await drive.invoke(build(saver, ignore), input_, config)
        assert result == {"trail": ["input", *CHAIN]}
        assert (await drive.state(graph, config)).values == result
    assert build is not chain or refused == 0, "plain channels stand for themselves"
