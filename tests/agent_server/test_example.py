"""The example project runs on the Agent Server."""

from __future__ import annotations

import json

import psycopg

from tests.agent_server.conftest import PROJECT, ROOT, Serve

EXAMPLE = ROOT / "examples" / "agent_server"


async def test_the_example_pays_once_and_keeps_its_state(serve: Serve, empty_conninfo: str) -> None:
    server = serve(EXAMPLE)
    given = {"messages": [{"role": "user", "content": "INV-7"}]}
    async with server.connect() as client:
        thread = (await client.threads.create())["thread_id"]
        done = await client.runs.wait(thread, "agent", input=given)
        assert done["messages"][-1]["content"] == "Done. INV-7: receipt 1"
    assert "Using custom checkpointer: AgentServerSaver" in server.stop()
    server.start()
    async with server.connect() as client:
        state = await client.threads.get_state(thread)
        assert state["values"]["messages"][-1]["content"] == "Done. INV-7: receipt 1"
    with psycopg.connect(empty_conninfo) as connection:
        rows = connection.execute("SELECT state FROM agent_server_example.effects").fetchall()
    assert rows == [("completed",)]


def test_the_tests_configure_the_server_as_the_example_does() -> None:
    [ours, shown] = [json.loads((place / "langgraph.json").read_text()) for place in (PROJECT, EXAMPLE)]
    assert ours["checkpointer"] == shown["checkpointer"]
