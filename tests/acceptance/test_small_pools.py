"""With a pool of one connection, a listing holds none while the body of the caller's loop runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langgraph_durable import DurableSaver
from tests.acceptance.driving import Drive, thread
from tests.acceptance.graphs import CHAIN, chain, fan_out, ignore
from tests.acceptance.subgraphs import nested


@pytest.fixture
def narrow(conninfo: str) -> Iterator[DurableSaver]:
    with DurableSaver.from_conn_string(conninfo, max_size=1, pool_timeout=20) as saver:
        yield saver


async def test_get_tuple_inside_list(narrow: DurableSaver, drive: Drive) -> None:
    graph = chain(narrow, ignore)
    for _ in range(15):  # 90 checkpoints: more than a page
        await drive.invoke(graph, {"trail": []}, thread())
    seen = 0
    if drive.asynchronous:
        async for found in narrow.alist(thread()):
            assert await narrow.aget_tuple(found.config) == found
            seen += 1
    else:
        for found in narrow.list(thread()):
            assert narrow.get_tuple(found.config) == found
            seen += 1
    assert seen == 90


async def test_a_listing_inside_a_listing(narrow: DurableSaver, drive: Drive) -> None:
    graph = chain(narrow, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    pairs = 0
    if drive.asynchronous:
        async for outer in narrow.alist(thread()):
            async for _ in narrow.alist(thread(), before=outer.config):
                pairs += 1
    else:
        for outer in narrow.list(thread()):
            for _ in narrow.list(thread(), before=outer.config):
                pairs += 1
    assert pairs == 5 + 4 + 3 + 2 + 1


async def test_runs_inside_a_listing(narrow: DurableSaver, drive: Drive) -> None:
    graph = chain(narrow, ignore)
    await drive.invoke(graph, {"trail": []}, thread())
    listing = narrow.list(thread())
    for n, found in enumerate(listing):
        assert found.metadata["step"] == 4 - n
        assert await drive.invoke(graph, {"trail": []}, thread(f"other {n}")) == {"trail": list(CHAIN)}
    assert n == 5


async def test_runs_on_one_connection(narrow: DurableSaver, drive: Drive) -> None:
    fanned = await drive.invoke(fan_out(narrow, ignore), {"items": list(range(20)), "results": []}, thread())
    assert fanned["results"] == [*(f"done {n}" for n in range(20)), "joined"]
    deep = await drive.invoke(nested(narrow, ignore, asks=False), {"trail": []}, thread("nested"))
    assert deep["trail"][-1] == "outer_last"
