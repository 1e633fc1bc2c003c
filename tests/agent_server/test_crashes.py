"""The Agent Server is killed, misconfigured, or runs jobs in separate loops."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest

from tests.agent_server.conftest import Serve, Server
from tests.agent_server.test_threads import new_thread, says, texts, until
from tests.vendor import Rules, Vendor


async def state_after_restart(server: Server, graph: str, thread: str) -> Any:
    """Return the thread's state once its run is finished, by the server itself or on request.

    The development server saves its list of threads and runs every ten seconds. What is younger it does not know after
    a kill; the thread's checkpoints are there as soon as the thread is created again.
    """
    async with server.connect() as client:
        await client.threads.create(thread_id=thread, graph_id=graph, if_exists="do_nothing")
        for _ in range(120):
            if not [r for r in await client.runs.list(thread) if r["status"] in ("pending", "running")]:
                break
            await asyncio.sleep(0.25)
        state = await client.threads.get_state(thread)
        if state["next"]:
            await client.runs.wait(thread, graph, input=None)
            state = await client.threads.get_state(thread)
        return state


async def test_a_killed_run_goes_on_and_pays_once(serve: Serve, vendor: Vendor) -> None:
    server = serve()
    order = f"order-{uuid.uuid4()}"
    vendor.set_rules(order, Rules(keys="ignore", hold="after commit"))
    async with server.connect() as client:
        thread = await new_thread(client)
        await client.runs.create(thread, "chat", input=says(f"pay {order}"), durability="sync")
        await asyncio.to_thread(vendor.wait_held, order)
        server.kill()
    vendor.release(order)
    server.start()
    state = await state_after_restart(server, "chat", thread)
    assert texts(state) == [f"pay {order}", "", f"{order}/0", f"3: {order}/0"]
    assert len(vendor.payments(order)) == 1


async def test_steps_before_the_kill_are_not_repeated(serve: Serve) -> None:
    server = serve()
    hold, steps = server.directory / "hold", server.directory / "steps"
    hold.touch()
    async with server.connect() as client:
        thread = await new_thread(client)
        await client.runs.create(thread, "trail", input={"trail": ["begin"]}, durability="sync")
        await until(lambda: steps.read_text().splitlines()[-1:] == ["2 "])
        server.kill()
    hold.unlink()
    server.start()
    state = await state_after_restart(server, "trail", thread)
    assert state["values"]["trail"] == ["begin", *(f"step {number}" for number in range(6))]
    assert [line[0] for line in steps.read_text().splitlines()] == ["0", "1", "2", "2", "3", "4", "5"]


async def test_deleting_a_thread_with_an_unresolved_effect_is_a_conflict(
    serve: Serve, vendor: Vendor
) -> None:
    from langgraph_sdk.errors import ConflictError

    server = serve()
    order = f"order-{uuid.uuid4()}"
    vendor.set_rules(order, Rules(keys="ignore", hold="before commit"))
    async with server.connect() as client:
        thread = await new_thread(client)
        run = await client.runs.create(thread, "chat", input=says(f"wire {order}"))
        await asyncio.to_thread(vendor.wait_held, order)
        vendor.release(order, commit=False)  # the vendor's answer says nothing certain
        await client.runs.join(thread, run["run_id"])
        with pytest.raises(ConflictError, match="unresolved effects") as raised:
            await client.threads.delete(thread)
    assert "langgraph-durable effects resolve" in str(raised.value)


async def test_isolated_loops(serve: Serve, empty_conninfo: str) -> None:
    server = serve(BG_JOB_ISOLATED_LOOPS="true", LANGGRAPH_DURABLE_MAX_SIZE="3")

    async def talk(client: Any, number: int) -> list[str]:
        thread = await new_thread(client)
        for text in ("one", "two"):
            done = await client.runs.wait(thread, "chat", input=says(f"{text} {number}"))
        return texts(done)

    async with server.connect() as client:
        said = await asyncio.gather(*(talk(client, number) for number in range(20)))
    for number, words in enumerate(said):
        assert words == [f"one {number}", f"1: one {number}", f"two {number}", f"3: two {number}"]
    log = server.stop()
    assert "never retrieved" not in log
    assert "cannot schedule new futures" not in log
    with psycopg.connect(empty_conninfo) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row == (0,)


def test_an_invalid_variable_ends_the_start(serve: Serve) -> None:
    server = serve(started=False, LANGGRAPH_DURABLE_MAX_SIZE="many")
    server.launch()
    assert server.process is not None
    assert server.process.wait(60) != 0
    assert "LANGGRAPH_DURABLE_MAX_SIZE must be a number of connections, got 'many'" in server.log.read_text()
