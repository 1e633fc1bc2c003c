"""The Agent Server's API on threads: streams, interrupts, forks, history, copies, pruning, rollback."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from langgraph_durable import DurableSaver
from langgraph_durable.reports import PruneReport
from tests.agent_server.conftest import Server
from tests.vendor import Vendor


def says(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def texts(state: Any) -> list[str]:
    values = state.get("values", state)
    return [message["content"] for message in values["messages"]]


async def new_thread(client: Any) -> str:
    return str((await client.threads.create())["thread_id"])


async def test_runs_stream_and_remember(client: Any) -> None:
    thread = await new_thread(client)
    modes = ["values", "updates", "messages-tuple", "checkpoints", "tasks", "debug"]
    events: list[Any] = [
        part async for part in client.runs.stream(thread, "chat", input=says("one"), stream_mode=modes)
    ]
    kinds = {part.event.partition("|")[0] for part in events}
    assert {"metadata", "values", "updates", "checkpoints", "tasks", "debug"} <= kinds
    assert "error" not in kinds
    assert texts(await client.runs.wait(thread, "chat", input=says("two"))) == [
        "one",
        "1: one",
        "two",
        "3: two",
    ]
    assert texts(await client.threads.get_state(thread)) == ["one", "1: one", "two", "3: two"]


async def test_interrupts_are_shown_and_resumed(client: Any) -> None:
    thread = await new_thread(client)
    await client.runs.wait(thread, "chat", input=says("ask me"))
    found = await client.threads.get(thread)
    assert found["status"] == "interrupted"
    [[question]] = found["interrupts"].values()
    assert question["value"] == "1: ask me"
    state = await client.threads.get_state(thread)
    assert state["next"] == ["ask"]
    done = await client.runs.wait(thread, "chat", command={"resume": "yes"})
    assert texts(done)[-2:] == ["answer yes", "3: answer yes"]
    assert (await client.threads.get(thread))["status"] == "idle"


async def test_history_and_forks(client: Any) -> None:
    thread = await new_thread(client)
    for text in ("one", "two"):
        await client.runs.wait(thread, "chat", input=says(text))
    history = await client.threads.get_history(thread, limit=100)
    assert [len(state["values"].get("messages", [])) for state in history] == [4, 3, 2, 2, 1, 0]
    older = await client.threads.get_history(thread, before=history[2]["checkpoint"])
    assert [s["checkpoint"]["checkpoint_id"] for s in older] == [
        s["checkpoint"]["checkpoint_id"] for s in history[3:]
    ]
    inputs = await client.threads.get_history(thread, metadata={"source": "input"})
    assert [s["metadata"]["step"] for s in inputs] == [2, -1]
    fork = history[2]["checkpoint"]
    forked = await client.runs.wait(thread, "chat", input=says("other"), checkpoint=fork)
    assert texts(forked) == ["one", "1: one", "other", "3: other"]
    updated = await client.threads.update_state(thread, says("edited"), checkpoint=fork, as_node="model")
    state = await client.threads.get_state(thread)
    assert state["checkpoint"]["checkpoint_id"] == updated["checkpoint"]["checkpoint_id"]
    assert texts(state) == ["one", "1: one", "edited"]
    assert texts(await client.threads.get_state(thread, checkpoint=history[0]["checkpoint"]))[-1] == "3: two"


async def test_copies_go_separate_ways(client: Any) -> None:
    thread = await new_thread(client)
    await client.runs.wait(thread, "chat", input=says("ask me"))
    copied = (await client.threads.copy(thread))["thread_id"]
    state = await client.threads.get_state(copied)
    assert state["metadata"]["thread_id"] == copied
    assert [s["metadata"]["thread_id"] for s in await client.threads.get_history(copied)] == [copied] * 3
    for name, answer in ((copied, "no"), (thread, "yes")):
        done = await client.runs.wait(name, "chat", command={"resume": answer})
        assert texts(done)[-1] == f"3: answer {answer}"


async def test_a_pruned_thread_goes_on_with_its_delta_channel(client: Any, shared_conninfo: str) -> None:
    thread = await new_thread(client)
    steps = [f"step {number}" for number in range(6)]
    expected: list[str] = []
    async with DurableSaver.from_conn_string(shared_conninfo) as saver:
        for number in range(3):
            expected += [f"input {number}", *steps]
            done = await client.runs.wait(thread, "trail", input={"trail": [f"input {number}"]})
            assert done["trail"] == expected
            report: PruneReport = await saver.aprune([thread])
            assert report.total.rows["checkpoints"] > 0
            assert (await client.threads.get_state(thread))["values"]["trail"] == expected
            assert len(await client.threads.get_history(thread)) == 1


async def test_deleted_and_pruned_threads_begin_afresh(client: Any, shared_conninfo: str) -> None:
    first, second = [await new_thread(client) for _ in range(2)]
    async with DurableSaver.from_conn_string(shared_conninfo) as saver:
        for thread in (first, second):
            await client.runs.wait(thread, "chat", input=says("one"))
            assert await saver.aget_tuple({"configurable": {"thread_id": thread}}) is not None
        await client.threads.delete(first)
        await client.threads.prune([second], strategy="delete")
        for thread in (first, second):
            assert await saver.aget_tuple({"configurable": {"thread_id": thread}}) is None
            await client.threads.create(thread_id=thread, graph_id="chat")
            done = await client.runs.wait(thread, "chat", input=says("again"))
            assert texts(done) == ["again", "1: again"]


async def test_deleting_a_run_takes_its_checkpoints_back(client: Any) -> None:
    thread = await new_thread(client)
    await client.runs.wait(thread, "trail", input={"trail": ["a"]})
    run = await client.runs.create(thread, "trail", input={"trail": ["b"]})
    await client.runs.join(thread, run["run_id"])
    await client.runs.delete(thread, run["run_id"])
    steps = [f"step {number}" for number in range(6)]
    assert (await client.threads.get_state(thread))["values"]["trail"] == ["a", *steps]
    done = await client.runs.wait(thread, "trail", input={"trail": ["c"]})
    assert done["trail"] == ["a", *steps, "c", *steps]


async def test_a_run_is_rolled_back_by_the_next_one(client: Any, shared: Server) -> None:
    thread = await new_thread(client)
    await client.runs.wait(thread, "trail", input={"trail": ["a"]})
    hold = shared.directory / "hold"
    hold.touch()
    try:
        await client.runs.create(thread, "trail", input={"trail": ["rolled back"]})
        await until(lambda: "0 rolled back" in (shared.directory / "steps").read_text())
        await asyncio.sleep(0.5)  # some steps are stored
    finally:
        next_run = await client.runs.create(
            thread, "trail", input={"trail": ["b"]}, multitask_strategy="rollback"
        )
        hold.unlink()
    await client.runs.join(thread, next_run["run_id"])
    steps = [f"step {number}" for number in range(6)]
    assert (await client.threads.get_state(thread))["values"]["trail"] == ["a", *steps, "b", *steps]


async def test_fifty_threads_at_once(client: Any) -> None:

    async def talk(number: int) -> list[str]:
        thread = await new_thread(client)
        for text in ("one", "two"):
            done = await client.runs.wait(thread, "chat", input=says(f"{text} {number}"))
        return texts(done)

    for number, said in enumerate(await asyncio.gather(*(talk(number) for number in range(50)))):
        assert said == [f"one {number}", f"1: one {number}", f"two {number}", f"3: two {number}"]


async def test_effects_are_paid_once(client: Any, vendor: Vendor) -> None:
    thread = await new_thread(client)
    order = f"order-{uuid.uuid4()}"
    done = await client.runs.wait(thread, "chat", input=says(f"pay {order}"))
    assert texts(done)[-2:] == [f"{order}/0", f"3: {order}/0"]
    history = await client.threads.get_history(thread)
    [before] = [state for state in history if state["next"] == ["tools"]]
    again = await client.runs.wait(thread, "chat", input=None, checkpoint=before["checkpoint"])
    assert texts(again) == texts(done)
    assert len(vendor.payments(order)) == 1


async def until(holds: Any) -> None:
    for _ in range(600):
        try:
            if holds():
                return
        except FileNotFoundError:
            pass
        await asyncio.sleep(0.05)
    pytest.fail("it never came to that")
