"""LangGraph's node cache in the database."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from typing_extensions import TypedDict

from langgraph_durable import DurableSaver
from langgraph_durable.cache import DurableCache
from langgraph_durable.errors import InvalidConfigError, UnserializableValueError
from tests.adapter import Adapter
from tests.checkpoints import config_for

NAMESPACE = ("writes", "node")


class Driver:
    """The methods of a cache, sync or async."""

    def __init__(self, cache: DurableCache[Any], *, asynchronous: bool) -> None:
        self.cache, self.asynchronous = cache, asynchronous

    async def get(self, *keys: Any) -> Any:
        return await self.cache.aget(keys) if self.asynchronous else self.cache.get(keys)

    async def set(self, pairs: Any) -> None:
        await self.cache.aset(pairs) if self.asynchronous else self.cache.set(pairs)

    async def clear(self, namespaces: Any = None) -> None:
        await self.cache.aclear(namespaces) if self.asynchronous else self.cache.clear(namespaces)


@pytest.fixture(params=["sync", "async"])
def cache(request: pytest.FixtureRequest, saver: DurableSaver) -> Driver:
    return Driver(DurableCache(saver), asynchronous=request.param == "async")


def rows(conninfo: str) -> int:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT count(*) FROM langgraph_durable.cache").fetchone()
        assert row is not None
        return int(row[0])


def let_expire(conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("UPDATE langgraph_durable.cache SET expires_at = expires_at - interval '1 hour'")


async def test_values_are_kept_replaced_and_cleared(cache: Driver) -> None:
    one, two, other = (NAMESPACE, "1"), (NAMESPACE, "2"), (("writes", "other"), "1")
    assert await cache.get() == {}
    assert await cache.get(one, two) == {}
    await cache.set({})
    await cache.set({one: ([("channel", 1)], None), two: (["long text " * 1000], 60), other: (None, None)})
    assert await cache.get(one, two, other) == {
        one: [["channel", 1]],  # LangGraph's serializer turns tuples into lists
        two: ["long text " * 1000],
        other: None,
    }
    await cache.set({one: ("new", None)})
    assert await cache.get(one, (NAMESPACE, "3")) == {one: "new"}
    await cache.clear([NAMESPACE, ("unknown",)])
    assert await cache.get(one, two, other) == {other: None}
    await cache.clear([])
    assert await cache.get(other) == {other: None}
    await cache.clear()
    assert await cache.get(other) == {}


async def test_any_text_is_a_key(cache: Driver) -> None:
    keys = [
        (("a", "b"), "c"),
        (("ab",), "c"),
        (("a",), "bc"),
        ((), ""),
        (("\0",), "\0"),
        (("\udcff",), "日本"),
    ]
    await cache.set({key: (number, None) for number, key in enumerate(keys)})
    assert await cache.get(*keys) == {key: number for number, key in enumerate(keys)}


async def test_values_expire(cache: Driver, conninfo: str) -> None:
    short, lasting, none = (NAMESPACE, "short"), (NAMESPACE, "lasting"), (NAMESPACE, "none")
    await cache.set({short: (1, 600), lasting: (2, None), none: (3, 0)})
    assert await cache.get(short, lasting, none) == {short: 1, lasting: 2}
    let_expire(conninfo)
    assert await cache.get(short, lasting) == {lasting: 2}
    assert rows(conninfo) == 3
    await cache.set({short: (4, 600)})  # also deletes what expired
    assert await cache.get(short, lasting, none) == {short: 4, lasting: 2}
    assert rows(conninfo) == 2


async def test_writers_of_the_same_keys_do_not_hinder_each_other(cache: Driver, conninfo: str) -> None:
    keys = [(NAMESPACE, str(number)) for number in range(30)]
    await cache.set(dict.fromkeys(keys, (-1, 60)))
    let_expire(conninfo)
    writes = [cache.cache.aset(dict.fromkeys(keys if n % 2 else reversed(keys), (n, 60))) for n in range(20)]
    await asyncio.gather(*writes)
    found = await cache.get(*keys)
    assert len(found) == 30
    assert set(found.values()) <= set(range(20))


async def test_what_cannot_be_stored_is_refused(cache: Driver) -> None:
    with pytest.raises(UnserializableValueError, match="the value to cache for 'x'"):
        await cache.set({(NAMESPACE, "y"): (1, None), (NAMESPACE, "x"): (object(), None)})
    for ttl in (-1, "soon", float("nan")):
        with pytest.raises(InvalidConfigError, match="ttl must be seconds"):
            await cache.set({(NAMESPACE, "y"): (1, ttl)})
    assert await cache.get((NAMESPACE, "y")) == {}


def test_only_a_durable_saver_has_a_cache(saver: DurableSaver) -> None:
    other: Any = InMemorySaver()
    with pytest.raises(InvalidConfigError, match="a DurableCache needs a DurableSaver, got InMemorySaver"):
        DurableCache(other)
    behind_a_server: Any = Adapter(saver)
    DurableCache[Any](behind_a_server).set({(NAMESPACE, "x"): (1, None)})
    assert DurableCache(saver).get([(NAMESPACE, "x")]) == {(NAMESPACE, "x"): 1}


def test_what_cannot_be_read_counts_as_not_cached(
    conninfo: str, saver: DurableSaver, caplog: pytest.LogCaptureFixture
) -> None:
    key = (NAMESPACE, "x")
    serdes = [EncryptedSerializer.from_pycryptodome_aes(key=secret * 16) for secret in (b"a", b"b")]
    with DurableSaver.from_conn_string(conninfo, serde=serdes[0]) as encrypting:
        DurableCache[Any](encrypting).set({key: ("the secret is 4711", None)})
        assert DurableCache(encrypting).get([key]) == {key: "the secret is 4711"}
    with psycopg.connect(conninfo) as connection:
        row = connection.execute("SELECT value FROM langgraph_durable.cache").fetchone()
    assert row is not None
    assert b"4711" not in row[0]
    assert DurableCache(saver, serde=serdes[1]).get([key]) == {}
    assert "the node runs, since its cached result cannot be read" in caplog.text


class State(TypedDict, total=False):
    n: int
    twice: int


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_cached_node_runs_once_for_all_threads_and_processes(
    conninfo: str, saver: DurableSaver, asynchronous: bool
) -> None:
    runs: list[int] = []

    def multiply(state: State) -> State:
        runs.append(state["n"])
        return {"twice": 2 * state["n"]}

    def graph(by: DurableSaver) -> Any:
        builder = StateGraph(State)
        builder.add_node("multiply", multiply, cache_policy=CachePolicy(ttl=600))
        builder.add_edge(START, "multiply")
        return builder.compile(checkpointer=by, cache=DurableCache(by))

    async def ask(by: DurableSaver, n: int, thread_id: str) -> int:
        config = config_for(thread_id)
        if asynchronous:
            return int((await graph(by).ainvoke({"n": n}, config))["twice"])
        return int(graph(by).invoke({"n": n}, config)["twice"])

    assert [await ask(saver, n, f"t{n}{again}") for again in "ab" for n in (1, 2)] == [2, 4, 2, 4]
    async with DurableSaver.from_conn_string(conninfo) as another:
        assert await ask(another, 1, "other") == 2
    assert runs == [1, 2]
    let_expire(conninfo)
    assert await ask(saver, 1, "late") == 2
    assert runs == [1, 2, 1]
    graph(saver).clear_cache()
    assert await ask(saver, 1, "later") == 2
    assert runs == [1, 2, 1, 1]


def test_a_cached_task_runs_once(saver: DurableSaver) -> None:
    runs: list[int] = []

    policy: Any = CachePolicy()

    @task(cache_policy=policy)
    def multiply(n: int) -> int:
        runs.append(n)
        return 2 * n

    @entrypoint(checkpointer=saver, cache=DurableCache(saver))
    def workflow(n: int) -> list[int]:
        return [multiply(n).result(), multiply(n + 1).result()]

    assert workflow.invoke(1, config_for("a")) == [2, 4]
    assert workflow.invoke(2, config_for("b")) == [4, 6]
    assert runs == [1, 2, 3]
