"""Connections killed by the server's administrator in the middle of a run."""

from __future__ import annotations

import threading

import psycopg
import pytest

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import CHAIN, Runs, chain, delta_chain, fan_out

_KILL_OTHERS = """
SELECT count(*) FROM (
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
) AS killed
"""


class Killer:
    """Records a node's start, and kills every connection of the database but its own."""

    def __init__(self, conninfo: str, *victims: str) -> None:
        self.runs = Runs()
        self.killed = 0
        self._conninfo = conninfo
        self._victims = victims
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        self.runs(name)
        if not self._victims or name in self._victims:
            with self._lock, psycopg.connect(self._conninfo, autocommit=True) as connection:
                [(killed,)] = connection.execute(_KILL_OTHERS).fetchall()
                self.killed += killed


@pytest.mark.filterwarnings("default::ResourceWarning")  # psycopg's, of the connections that were killed
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("build", [chain, delta_chain])
async def test_a_run_survives_killed_connections(
    saver: DurableSaver, conninfo: str, drive: Drive, durability: str, build: type
) -> None:
    killer = Killer(conninfo)
    graph = build(saver, killer)
    for turn in range(2):
        result = await drive.invoke(graph, {"trail": [f"input {turn}"]}, thread(), durability=durability)
    assert result == {"trail": ["input 0", *CHAIN, "input 1", *CHAIN]}
    assert killer.killed > 0
    assert killer.runs.names == [*CHAIN, *CHAIN]
    history = await drive.history(graph, thread())
    assert history[0].values == result
    steps = [s.metadata["step"] for s in history if s.metadata]
    assert len(steps) == len(set(steps))
    if durability != "exit":
        assert steps == list(range(10, -2, -1))


async def test_parallel_tasks_survive_killed_connections(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    killer = Killer(conninfo, "work 3", "work 7", "join")
    graph = fan_out(saver, killer)
    result = await drive.invoke(graph, {"items": list(range(10)), "results": []}, thread())
    assert result["results"] == [*(f"done {n}" for n in range(10)), "joined"]
    assert killer.killed > 0
    assert len(killer.runs.names) == 11
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute(
            "SELECT count(*), count(DISTINCT (checkpoint_id, task_id, idx)) FROM langgraph_durable.writes"
        ).fetchall()
    assert rows[0][0] == rows[0][1] > 0


async def test_runs_continue_after_connections_were_killed(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    runs = Runs()
    graph = chain(saver, runs)
    for turn in range(3):
        await drive.invoke(graph, {"trail": [str(turn)]}, thread())
        Killer(conninfo)("between")
        assert (await drive.state(graph, thread())).values["trail"][-5] == str(turn)
    assert runs.names == [*CHAIN] * 3
