"""One saver in many threads, tasks and event loops at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langgraph.types import Command

from langgraph_durable import DurableSaver
from tests.acceptance.driving import thread
from tests.acceptance.graphs import CHAIN, ask, chain, delta_chain, fan_out, ignore

FAN = {"items": [0, 1, 2], "results": []}
FANNED = ["done 0", "done 1", "done 2", "joined"]


def test_fifty_threads(saver: DurableSaver) -> None:
    graph = fan_out(saver, ignore)
    with ThreadPoolExecutor(50) as threads:
        results = list(threads.map(lambda n: graph.invoke(FAN, thread(f"thread {n}")), range(50)))
    assert [r["results"] for r in results] == [FANNED] * 50
    for number in range(50):
        history = list(graph.get_state_history(thread(f"thread {number}")))
        assert [s.metadata["step"] for s in history if s.metadata] == [2, 1, 0, -1]
        assert history[0].values["results"] == FANNED


async def test_two_hundred_tasks(saver: DurableSaver) -> None:
    graph = chain(saver, ignore)
    results = await asyncio.gather(
        *(graph.ainvoke({"trail": [str(n)]}, thread(f"thread {n}")) for n in range(200))
    )
    assert [r["trail"] for r in results] == [[str(n), *CHAIN] for n in range(200)]
    states = await asyncio.gather(*(graph.aget_state(thread(f"thread {n}")) for n in range(200)))
    assert [s.values["trail"] for s in states] == [[str(n), *CHAIN] for n in range(200)]
    assert {s.metadata["step"] for s in states if s.metadata} == {4}


def test_event_loops_in_threads(saver: DurableSaver) -> None:
    graph = fan_out(saver, ignore)

    async def runs(loop: int) -> list[list[str]]:
        results = await asyncio.gather(*(graph.ainvoke(FAN, thread(f"thread {loop} {n}")) for n in range(5)))
        return [r["results"] for r in results]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: asyncio.run(runs(n)), range(8)))
    assert found == [[FANNED] * 5] * 8
    assert len({c.config["configurable"]["thread_id"] for c in saver.list(None)}) == 40


async def test_sync_calls_inside_a_running_loop(saver: DurableSaver) -> None:
    graph = chain(saver, ignore)
    running = [asyncio.create_task(graph.ainvoke({"trail": []}, thread(f"async {n}"))) for n in range(5)]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert graph.invoke({"trail": []}, thread("sync")) == {"trail": list(CHAIN)}
    assert graph.get_state(thread("sync")).values == {"trail": list(CHAIN)}
    assert len(list(saver.list(thread("sync")))) == 6
    assert [r["trail"] for r in await asyncio.gather(*running)] == [list(CHAIN)] * 5


async def test_sync_and_async_take_turns_on_a_thread(saver: DurableSaver) -> None:
    for graph in (chain(saver, ignore), delta_chain(saver, ignore)):
        config = thread(f"thread {id(graph)}")
        for turn in range(3):
            await graph.ainvoke({"trail": [f"async {turn}"]}, config)
            result = graph.invoke({"trail": [f"sync {turn}"]}, config)
        assert result["trail"][::5] == ["async 0", "sync 0", "async 1", "sync 1", "async 2", "sync 2"]
        assert (await graph.aget_state(config)).values == graph.get_state(config).values == result


@pytest.mark.context
async def test_asked_sync_and_answered_async(saver: DurableSaver) -> None:
    graph = ask(saver, ignore)
    graph.invoke({"trail": []}, thread("one"))
    await graph.ainvoke({"trail": []}, thread("two"))
    first = await graph.ainvoke(Command(resume="yes"), thread("one"))
    second = graph.invoke(Command(resume="yes"), thread("two"))
    assert first == second == {"trail": ["before", "ask: yes", "after"]}


_LOOPS_THAT_END = """
import asyncio, sys
from langgraph_durable import DurableSaver

saver = DurableSaver.from_conn_string(sys.argv[1])

async def busy():
    await asyncio.gather(*(saver.aget_tuple({"configurable": {"thread_id": str(n)}}) for n in range(4)))

for _ in range(30):
    asyncio.run(busy())
"""


def test_an_event_loop_ends_while_its_pool_grows(conninfo: str) -> None:
    # In a separate process, since an event loop that cannot end hangs it.
    ended = subprocess.run(
        [sys.executable, "-c", _LOOPS_THAT_END, conninfo],
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0
