"""Tool calls that an abandoned step left without an answer are answered with what is known of each."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from langchain_core.messages import AIMessage

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.effect_workers import started
from tests.acceptance.heal_graphs import (
    READING,
    Kind,
    Model,
    answers,
    asking,
    build,
    problem,
    run_until_killed,
    say,
    shop,
)
from tests.acceptance.test_kills import wait_until

pytestmark = pytest.mark.context


@pytest.fixture(params=["agent", "node"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "agent":
        pytest.importorskip("langchain.agents", reason="langchain is not installed")
    made: Kind = request.param
    return made


def count(conninfo: str, query: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def killed_while_slow(kind: Kind, conninfo: str, ledger: Path, drive: Drive) -> None:
    """Run in a process that is killed when the payment and the look-up are done, and their sibling runs."""
    with started(run_until_killed, kind, conninfo, str(ledger), drive.asynchronous) as worker:
        assert worker.hear() == "reached"
        completed = "SELECT count(*) FROM langgraph_durable.effects WHERE state = 'completed'"
        wait_until(lambda: count(conninfo, completed) == 1)
        if kind == "agent":  # each call is a task, so the finished ones leave writes
            written = (
                "SELECT count(*) FROM langgraph_durable.writes WHERE task_path LIKE '%push%' AND idx >= 0"
            )
            wait_until(lambda: count(conninfo, written) >= 2)
        worker.kill()


# --- after a crash ---


async def test_a_new_message_after_a_crash_shows_the_model_the_receipt(
    saver: DurableSaver, conninfo: str, drive: Drive, kind: Kind, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    killed_while_slow(kind, conninfo, ledger, drive)

    model = Model(script=[asking("charge", "look_up", "slow"), AIMessage("paid")])
    graph = build(kind, saver, model, shop(ledger, lambda: None, drive), policies=READING)
    result = await drive.invoke(graph, say("and?"), thread())

    seen = model.seen[-1]
    assert problem(seen) is None
    given = answers(seen)
    assert given["call_charge"].content == "receipt for charge a"
    assert (given["call_charge"].status, given["call_charge"].name) == ("success", "charge")
    assert given["call_charge"].additional_kwargs["effect"]["healed"]
    assert given["call_charge"].additional_kwargs["effect"]["replayed"]
    if kind == "agent":
        assert given["call_look_up"].content == "looked up a"
    else:  # all calls are one task, which wrote nothing
        assert "It changes nothing" in str(given["call_look_up"].content)
    assert given["call_slow"].status == "error"
    assert "may have taken place" in str(given["call_slow"].content)
    assert [m.type for m in seen] == ["human", "ai", "tool", "tool", "tool", "human"]
    assert [m.content for m in result["messages"]][-2:] == ["and?", "paid"]
    assert ledger.read_text() == "charge a\n"
    deliveries = "SELECT count(*) FROM langgraph_durable.effect_deliveries"
    assert count(conninfo, deliveries) == 1
