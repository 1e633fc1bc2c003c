"""Serializers that are given, reassigned, cloned, and that encrypt."""

from __future__ import annotations

import copy
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import CHAIN, ask, chain, delta_chain, ignore

SECRET = "the-secret-" + "x" * 300


class Counting(JsonPlusSerializer):
    """Counts what it serializes."""

    def __init__(self) -> None:
        super().__init__()
        self.dumped = 0
        self.loaded = 0

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.dumped += 1
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.loaded += 1
        return super().loads_typed(data)


def contents(conninfo: str) -> bytes:
    """Everything in the tables, as text and as bytes."""
    found = b""
    with psycopg.connect(conninfo) as connection:
        for table in ("checkpoints", "channel_values", "segments", "writes"):
            for row in connection.execute(f"SELECT * FROM langgraph_durable.{table}"):
                found += b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
    return found


def encrypted() -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


async def test_a_graph_run_encrypted(saver: DurableSaver, conninfo: str, drive: Drive) -> None:
    saver.serde = encrypted()
    for graph in (chain(saver, ignore), delta_chain(saver, ignore)):
        config = thread(f"thread {id(graph)}")
        config["metadata"] = {"customer": "the-secret-customer"}
        for given in (SECRET, "the-secret-short"):
            result = await drive.invoke(graph, {"trail": [given]}, config)
        assert result == {"trail": [SECRET, *CHAIN, "the-secret-short", *CHAIN]}
        assert (await drive.state(graph, config)).values == result
        filtered = await drive.history(graph, config, filter={"customer": "the-secret-customer"})
        assert len(filtered) == 12
    stored = contents(conninfo)
    assert len(stored) > 1000
    assert b"the-secret" not in stored


async def test_plain_runs_can_be_found_in_the_tables(
    saver: DurableSaver, conninfo: str, drive: Drive
) -> None:
    await drive.invoke(chain(saver, ignore), {"trail": [SECRET]}, thread())
    assert b"the-secret" in contents(conninfo)  # so the test above looks in the right places


async def test_serde_is_asked_for_at_every_call(saver: DurableSaver, drive: Drive) -> None:
    graph = chain(saver, ignore)
    await drive.invoke(graph, {"trail": ["plain"]}, thread())
    counting = Counting()
    saver.serde = counting
    await drive.invoke(graph, {"trail": ["counted"]}, thread())
    assert counting.dumped > 0
    assert counting.loaded > 0
    saver.serde = encrypted()  # which reads what was stored before it
    result = await drive.invoke(graph, {"trail": ["encrypted"]}, thread())
    assert result["trail"][::5] == ["plain", "counted", "encrypted"]


async def test_a_clone_works_as_its_original(saver: DurableSaver, drive: Drive) -> None:
    await drive.invoke(chain(saver, ignore), {"trail": ["original"]}, thread())
    clone = copy.copy(saver)
    clone.serde = counting = Counting()
    result = await drive.invoke(chain(clone, ignore), {"trail": ["clone"]}, thread())
    assert result["trail"][::5] == ["original", "clone"]
    assert counting.dumped > 0
    assert saver.serde is not counting
    assert (await drive.state(chain(saver, ignore), thread())).values == result


@pytest.mark.context
async def test_with_allowlist(saver: DurableSaver, drive: Drive) -> None:
    saver.serde = JsonPlusSerializer(allowed_msgpack_modules=[("tests.acceptance.nothing", "Here")])
    clone = saver.with_allowlist([("tests.acceptance.graphs", "Runs")])
    assert clone is not saver
    assert isinstance(clone, DurableSaver)
    await drive.invoke(ask(clone, ignore), {"trail": []}, thread())
    state = await drive.state(ask(saver, ignore), thread())
    assert state.next == ("ask",)
    assert state.values == {"trail": ["before"]}
