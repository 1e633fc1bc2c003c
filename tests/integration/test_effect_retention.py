"""Effects of threads that are deleted, copied and pruned; and on the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_durable import DurableSaver, EffectError, EffectUnknownError, NotHappened, effect
from langgraph_durable.cli.main import main
from langgraph_durable.errors import EffectUnresolvedError, PruneFailedError, ThreadDeletedError
from tests.checkpoints import config_for
from tests.samples import Driver, Observer


class Payments:
    """A graph whose tool pays, and the payments it made."""

    def __init__(self, saver: DurableSaver) -> None:
        self.saver = saver
        self.log = saver.effects
        self.paid: list[str] = []
        self.broken = False
        self.meanwhile: Callable[[], Any] = lambda: None

        @tool
        @effect()
        def pay(invoice: str) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            self.meanwhile()
            if self.broken:
                raise RuntimeError(f"the answer to {invoice} got lost")
            return f"paid {invoice}"

        def ask(state: MessagesState) -> dict[str, Any]:
            call = {"name": "pay", "args": {"invoice": "secret 7"}, "id": "call"}
            return {"messages": [AIMessage("", tool_calls=[call], id=f"ask {len(state['messages'])}")]}

        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_node("tools", ToolNode([pay], handle_tool_errors=False))
        builder.add_edge(START, "ask")
        builder.add_edge("ask", "tools")
        self.graph = builder.compile(checkpointer=saver)

    def run(self, thread_id: str, input_: Any = None) -> str:
        result = self.graph.invoke(input_, config_for(thread_id), durability="sync")
        last = result["messages"][-1]
        assert isinstance(last, ToolMessage)
        return str(last.content)

    def start(self, thread_id: str) -> str:
        return self.run(thread_id, {"messages": [("user", "pay")]})

    def break_off(self, thread_id: str) -> str:
        """Run a thread whose payment's end is unknown; return the effect."""
        self.broken = True
        with pytest.raises(RuntimeError, match="got lost"):
            self.start(thread_id)
        self.broken = False
        [waiting] = self.log.pending(thread_id)
        return waiting.effect_id


@pytest.fixture
def payments(saver: DurableSaver) -> Payments:
    return Payments(saver)


async def test_a_thread_is_not_deleted_under_an_unresolved_effect(payments: Payments, drive: Driver) -> None:
    waiting = payments.break_off("a")
    for name in ("delete_thread",):
        with pytest.raises(EffectUnresolvedError, match="or delete with force=True"):
            await drive(payments.saver, name, "a")
    with pytest.raises(PruneFailedError, match="1 unresolved effects"):
        await drive(payments.saver, "prune", ["a"], strategy="delete")
    assert payments.graph.get_state(config_for("a")).next == ("tools",)
    payments.log.resolve(waiting, NotHappened())
    assert payments.run("a") == "paid secret 7"
    await drive(payments.saver, "delete_thread", "a")
    assert payments.saver.get(config_for("a")) is None


async def test_a_deleted_thread_keeps_effect_records_without_payloads(
    payments: Payments, drive: Driver, observer: Observer
) -> None:
    payments.start("a")
    [before] = payments.log.list(thread_id="a")
    assert before.args == {"invoice": "secret 7"}
    await drive(payments.saver, "delete_thread", "a")
    [after] = payments.log.list(thread_id="a")
    assert (after.effect_id, after.state, after.args) == (before.effect_id, "completed", None)
    stored = str(observer.rows("SELECT * FROM langgraph_durable.effects"))
    assert "secret" not in stored
    # The same message ids again, in a new life of the thread: a new effect.
    payments.start("a")
    assert payments.paid == ["secret 7", "secret 7"]


async def test_errors_and_notes_expire_with_the_arguments_they_may_quote(
    payments: Payments, drive: Driver, observer: Observer
) -> None:
    history = "SELECT count(*), count(reason), string_agg(reason, ' ') FROM langgraph_durable.effect_events"
    for thread_id in ("a", "b"):
        waiting = payments.break_off(thread_id)
        payments.log.resolve(waiting, NotHappened(), note="asked about secret 7")
        payments.run(thread_id)
    [(events, told, said)] = observer.rows(history)
    assert said.count("secret") == 4
    await drive(payments.saver, "delete_thread", "a")
    [(left, fewer, _)] = observer.rows(history)
    assert (left, fewer) == (events, told / 2)
    await drive(payments.saver, "prune_all", keep_last=1, effects_older_than=timedelta(0))
    assert observer.rows(history) == [(events, 0, None)]


async def test_force_deletes_a_thread_with_unresolved_effects(payments: Payments, drive: Driver) -> None:
    waiting = payments.break_off("a")
    await drive(payments.saver, "delete_thread", "a", force=True)
    report = payments.saver.prune_all(keep_last=1)
    assert report.effects_orphaned == 1
    [record] = payments.log.pending()
    assert record.effect_id == waiting


async def test_an_effect_that_ends_after_its_thread_was_deleted_stores_no_payload(
    payments: Payments, drive: Driver, observer: Observer
) -> None:
    payments.meanwhile = lambda: payments.saver.delete_thread("a", force=True)
    with pytest.raises(ThreadDeletedError):
        payments.start("a")
    [record] = payments.log.list(thread_id="a")
    assert record.state == "completed"
    for table in ("effects", "effect_events"):
        assert "secret" not in str(observer.rows(f"SELECT * FROM langgraph_durable.{table}"))


async def test_a_copy_has_the_effects_of_its_source(payments: Payments, drive: Driver) -> None:
    payments.start("a")
    await drive(payments.saver, "copy_thread", "a", "b")
    [before], [copied] = payments.log.list(thread_id="a"), payments.log.list(thread_id="b")
    assert (copied.state, copied.args, copied.idempotency_key) == (
        "completed",
        before.args,
        before.idempotency_key,
    )
    assert copied.effect_id != before.effect_id
    [event] = payments.log.history(copied.effect_id)
    assert (event.from_state, event.to_state, event.reason) == (None, "completed", "copied with thread a")
    [paused] = [s for s in payments.graph.get_state_history(config_for("b")) if s.next == ("tools",)]
    result = payments.graph.invoke(None, paused.config, durability="sync")
    assert result["messages"][-1].content == "paid secret 7"
    assert payments.paid == ["secret 7"], "replayed in the copy"


async def test_a_copy_of_an_unresolved_effect_is_unknown(payments: Payments, drive: Driver) -> None:
    payments.break_off("a")
    await drive(payments.saver, "copy_thread", "a", "b")
    with pytest.raises(EffectUnknownError):
        payments.run("b")
    assert payments.paid == ["secret 7"]
    [source], [copied] = payments.log.pending("a"), payments.log.pending("b")
    assert source.idempotency_key == copied.idempotency_key, "the vendor knows them as one"


async def test_a_failed_effect_is_retried_separately_in_a_copy(payments: Payments, drive: Driver) -> None:
    payments.log.resolve(payments.break_off("a"), NotHappened())
    await drive(payments.saver, "copy_thread", "a", "b")
    keys = set()
    for thread_id in ("a", "b"):
        assert payments.run(thread_id) == "paid secret 7"
        [record] = payments.log.list(thread_id=thread_id)
        keys.add(record.idempotency_key)
    assert len(keys) == 2, "the vendor would take both payments for one"


async def test_a_copy_of_an_effect_in_flight_is_unknown(
    payments: Payments, drive: Driver, observer: Observer
) -> None:
    payments.break_off("a")
    observer.rows(
        "UPDATE langgraph_durable.effects SET state = 'issued', lease_until = now() + interval '1 day'"
    )
    await drive(payments.saver, "copy_thread", "a", "b")
    [copied] = payments.log.list(thread_id="b")
    assert copied.state == "unknown"


async def test_a_prune_spares_effects(payments: Payments, drive: Driver) -> None:
    payments.start("a")
    payments.start("a")
    await drive(payments.saver, "prune", ["a"])
    assert [e.state for e in payments.log.list(thread_id="a")] == ["completed", "completed"]


async def test_prune_all_drops_the_payloads_of_old_effects(
    payments: Payments, drive: Driver, observer: Observer
) -> None:
    payments.start("a")
    payments.break_off("b")
    observer.rows("UPDATE langgraph_durable.effects SET ended_at = ended_at - interval '40 days'")
    for age, dry_run, expired in ((50, False, 0), (30, True, 1), (30, False, 1), (30, False, 0)):
        report = await drive(
            payments.saver,
            "prune_all",
            keep_last=10,
            effects_older_than=timedelta(days=age),
            dry_run=dry_run,
        )
        assert report.effects_expired == expired
    assert [e.args for e in payments.log.list()] == [None, {"invoice": "secret 7"}]
    [paused] = [s for s in payments.graph.get_state_history(config_for("a")) if s.next == ("tools",)]
    with pytest.raises(EffectError, match="expired"):
        payments.graph.invoke(None, paused.config, durability="sync")
    assert payments.paid == ["secret 7", "secret 7"]


async def test_expired_payloads_of_a_failed_attempt_do_not_affect_the_next(
    payments: Payments, observer: Observer
) -> None:
    payments.log.resolve(payments.break_off("a"), NotHappened())
    observer.rows("UPDATE langgraph_durable.effects SET ended_at = ended_at - interval '40 days'")
    report = payments.saver.prune_all(keep_last=10, effects_older_than=timedelta(days=30))
    assert report.effects_expired == 1
    [paused] = [s for s in payments.graph.get_state_history(config_for("a")) if s.next == ("tools",)]
    assert payments.run("a") == "paid secret 7"
    assert [e.args for e in payments.log.list()] == [{"invoice": "secret 7"}]
    assert payments.graph.invoke(None, paused.config)["messages"][-1].content == "paid secret 7"
    assert payments.paid == ["secret 7", "secret 7"]


async def test_an_expired_effect_is_forgotten_with_its_thread(payments: Payments, observer: Observer) -> None:
    payments.start("a")
    observer.rows("UPDATE langgraph_durable.effects SET ended_at = ended_at - interval '40 days'")
    payments.saver.prune_all(keep_last=10, effects_older_than=timedelta(days=30))
    payments.saver.delete_thread("a")
    # The same message ids again, in a new life of the thread: a new effect.
    assert payments.start("a") == "paid secret 7"
    payments.saver.delete_thread("a")
    assert payments.start("a") == "paid secret 7"


def test_the_command_line_lists_shows_and_resolves(
    payments: Payments, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        status = main(["effects", *arguments, "--database", conninfo])
        told = capsys.readouterr()
        return told.out if status == 0 else told.err

    assert run("list") == "no effect needs a decision\n"
    assert run("list", "--all") == "no effects\n"
    waiting = payments.break_off("a")
    listed = run("list")
    for word in (waiting, "unknown", "pay", "secret 7", "effects resolve EFFECT"):
        assert word in listed
    assert json.loads(run("list", "--json"))["effect_id"] == waiting
    assert run("list", "--tool", "other") == "no effect needs a decision\n"
    assert run("list", "--thread", "b") == "no effect needs a decision\n"
    assert run("list", "--thread", "a\0b").startswith("InvalidConfigError: thread_id holds a NUL")
    assert "EffectError" in run("show", "nothing")
    assert "EffectError" in run("resolve", waiting, "abandon", "--result", "1")
    assert "quote text" in run("resolve", waiting, "happened", "--result", "sent")
    decided = run("resolve", waiting, "happened", "--result", '"by hand"', "--note", "seen", "--actor", "ann")
    assert "is completed" in decided
    shown = run("show", waiting)
    assert "unknown -> completed" in shown
    assert "ann: seen" in shown
    assert json.loads(run("show", waiting, "--json"))["history"][-1]["actor"] == "ann"
    assert "needs no decision" in run("resolve", waiting, "abandon")
    assert payments.run("a") == "by hand"
    assert waiting in run("list", "--all")
    assert waiting in run("list", "--state", "completed")


def test_the_command_line_escapes_unprintable_text(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = saver.effects
    odd = {("no", "key of JSON"): 1, "clears": "\x9b2J", "half": "\udc80"}
    with pytest.raises(RuntimeError), log.effect("pay\x1b[2J", key="k", args=odd) as e:
        e.issue()
        raise RuntimeError("broken\x1b[2J")
    [waiting] = log.pending()
    for arguments in (["list"], ["show", waiting.effect_id]):
        assert main(["effects", *arguments, "--database", conninfo]) == 0
        told = capsys.readouterr().out
        assert "pay\\x1b[2J" in told
        assert all(line.isprintable() for line in told.splitlines())
        assert main(["effects", *arguments, "--json", "--database", conninfo]) == 0
        assert json.loads(capsys.readouterr().out)["args"] == {"no,key of JSON": 1} | {
            name: value for name, value in odd.items() if isinstance(name, str)
        }


def test_a_user_without_an_account_can_decide(
    payments: Payments, conninfo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = payments.break_off("a")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    assert main(["effects", "resolve", waiting, "abandon", "--database", conninfo]) == 0
    assert payments.log.history(waiting)[-1].actor == "uid 2000000001"
