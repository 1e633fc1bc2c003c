"""Measure disk, WAL and time of conversations, small states and files, and how disk usage grows.

Each run has a separate database. `python -m benchmarks.storage` runs only this benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

from benchmarks.graphs import AnySaver
from benchmarks.harness import Figure, both_savers, server_version, show, write_json
from langgraph_durable import embedded

MESSAGE = 1100  # characters
GROWTH = (50, 100, 200, 400)
ROUNDS = 3
WARM_UP = 150
OUR_TABLES = "langgraph_durable"
CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}

SYLLABLES = [*"aeiou", *(c + v for c in "bdfglmnprstvkhj" for v in "aeiou"), "st", "th", "en", "er", "on"]


@cache
def vocabulary() -> tuple[list[str], list[float]]:
    """Return words and their frequencies, which fall as in prose (Zipf's law)."""
    dice = random.Random(7)
    words = ["".join(dice.choices(SYLLABLES, k=dice.randint(1, 4))) for _ in range(3000)]
    return words, [1 / (rank + 3) for rank in range(len(words))]


def prose(number: int, size: int = MESSAGE) -> str:
    """Return the text of a number; such texts together compress by a factor of two to three."""
    dice = random.Random(number)
    words, weights = vocabulary()
    return " ".join(dice.choices(words, weights, k=size // 4))[:size]


# --- workloads ---


async def converse(saver: AnySaver, turns: int) -> Any:
    """Run a conversation with a model and a tool, and return its messages."""

    def model(state: MessagesState) -> dict[str, Any]:
        n = len(state["messages"])
        call = {"name": "search", "args": {"query": f"query {n}"}, "id": f"call-{n}"}
        return {"messages": [AIMessage(prose(n), id=f"m{n}", tool_calls=[call])]}

    def tool(state: MessagesState) -> dict[str, Any]:
        n = len(state["messages"])
        return {"messages": [ToolMessage(prose(n), id=f"m{n}", tool_call_id=f"call-{n - 1}")]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("model", model), ("tool", tool)])
    builder.add_edge(START, "model")
    graph = builder.compile(checkpointer=saver)
    for turn in range(turns):
        question: list[AnyMessage] = [HumanMessage(prose(3 * turn), id=f"m{3 * turn}")]
        await graph.ainvoke({"messages": question}, CONFIG, durability="async")
    return (await graph.aget_state(CONFIG)).values["messages"]


def merge(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
    return left | right


class Files(TypedDict):
    files: Annotated[dict[str, str], merge]
    step: int


async def edit_files(saver: AnySaver, steps: int) -> Any:
    """Change one of fifty files of 20 KB in each step, and return the files."""

    def edit(state: Files) -> dict[str, Any]:
        step = state["step"]
        return {"files": {f"file-{step % 50}.md": prose(step, 20_000)}, "step": step + 1}

    builder = StateGraph(Files)
    builder.add_node("edit", edit)
    builder.add_edge(START, "edit")
    builder.add_conditional_edges("edit", lambda state: "edit" if state["step"] < steps else "__end__")
    graph = builder.compile(checkpointer=saver)
    config: RunnableConfig = {**CONFIG, "recursion_limit": steps + 5}
    files = {f"file-{n}.md": prose(1000 + n, 20_000) for n in range(50)}
    await graph.ainvoke({"files": files, "step": 0}, config, durability="async")
    return (await graph.aget_state(config)).values["files"]


async def put_small(saver: AnySaver, steps: int, thread_id: str = "thread") -> Any:
    """Put states of five channels and 1 KB, of which two change in each step; return the last values."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    latest = config
    values: dict[str, Any] = {f"channel {n}": {"text": prose(n, 200)} for n in range(5)}
    versions: dict[str, Any] = {}
    for step in range(steps):
        checkpoint = empty_checkpoint()
        checkpoint["v"] = 4
        version = saver.get_next_version(max(versions.values(), default=None), None)
        which = values if step == 0 else ["channel 0", f"channel {1 + step % 4}"]
        changed: dict[str, Any] = dict.fromkeys(which, version)
        values = values | {channel: {"text": prose(step, 200)} for channel in changed}
        versions = versions | changed
        checkpoint["channel_values"], checkpoint["channel_versions"] = values, versions
        config = await saver.aput(
            config, checkpoint, {"source": "loop", "step": step, "parents": {}}, changed
        )
    found = await saver.aget_tuple(latest)
    assert found is not None
    return found.checkpoint["channel_values"]


# --- measurement ---

Work = Callable[[AnySaver, int], Awaitable[Any]]


@dataclass(frozen=True)
class Cost:
    """The cost of a run, and its result, which must be equal for both savers."""

    seconds: float
    disk: int
    wal: int
    result: Any


async def run_both(server: str, work: Work, size: int, *, ours_first: bool) -> tuple[Cost, Cost]:
    """Run a workload with each saver, in one new database."""
    async with both_savers(server) as (ours, peer):
        pool: Any = peer.conn
        pairs: list[tuple[AnySaver, str]] = [(ours, OUR_TABLES), (peer, "public")]
        costs = {}
        for saver, _ in pairs:  # so that every connection has prepared its statements
            await put_small(saver, WARM_UP, "warm")
        for saver, schema in pairs if ours_first else pairs[::-1]:
            costs[schema] = await cost(pool.conninfo, schema, partial(work, saver, size))
    assert costs[OUR_TABLES].result == costs["public"].result, "both savers read back the same result"
    return costs[OUR_TABLES], costs["public"]


async def cost(conninfo: str, schema: str, call: Callable[[], Awaitable[Any]]) -> Cost:
    before = measure(conninfo, schema)
    began = time.perf_counter()
    result = await call()
    seconds = time.perf_counter() - began
    after = measure(conninfo, schema)
    return Cost(seconds, after[0] - before[0], after[1] - before[1], result)


def measure(conninfo: str, schema: str) -> tuple[int, int]:
    """Return the bytes of a schema's tables, indexes and TOAST, and of all WAL written so far."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # so that both write full pages for the same blocks
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid))::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint "
            "FROM pg_class c WHERE relnamespace = %s::regnamespace AND relkind = 'r'",
            (schema,),
        ).fetchone()
    assert row is not None
    return row


async def compare_costs(
    server: str, name: str, work: Work, size: int, targets: Sequence[float | None], rounds: int = ROUNDS
) -> list[Figure]:
    """Compare disk, WAL and time with their targets; the order of the savers alternates."""
    runs = [await run_both(server, work, size, ours_first=bool(n % 2)) for n in range(rounds)]

    def median(of: Callable[[Cost], float], side: int) -> float:
        return statistics.median(of(run[side]) for run in runs)

    kinds: list[tuple[str, str, Callable[[Cost], float]]] = [
        ("disk", "MB", lambda c: c.disk / 1e6),
        ("WAL", "MB", lambda c: c.wal / 1e6),
        ("time", "s", lambda c: c.seconds),
    ]
    return [
        show(Figure(f"{name}: {kind}", unit, median(of, 0), median(of, 1), target))
        for (kind, unit, of), target in zip(kinds, targets, strict=True)
    ]


def exponent(sizes: Sequence[float]) -> float:
    """Return b of `bytes = a * turns ** b`, by linear regression on the logarithms."""
    xs, ys = [math.log(t) for t in GROWTH], [math.log(s) for s in sizes]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return slope / sum((x - mean_x) ** 2 for x in xs)


async def run(server: str, picture: Path = Path("benchmarks/growth.png")) -> list[Figure]:
    """Measure, print a line for each figure, and draw the growth."""
    figures = await compare_costs(server, "5 channels, 1 KB, 1500 puts", put_small, 1500, (1, 1, 1))
    figures += await compare_costs(
        server, "50 files of 20 KB, 100 edits", edit_files, 100, (0.05, None, None)
    )
    by_turns = {}
    for turns in GROWTH:
        targets = {100: (0.07, 0.07, 0.45), 400: (0.02, 0.02, 0.45)}.get(turns, (None, None, None))
        by_turns[turns] = await compare_costs(
            server, f"conversation of {turns} turns", converse, turns, targets, ROUNDS if turns < 400 else 1
        )
        figures += by_turns[turns]
    began = time.perf_counter()
    await converse(InMemorySaver(), 100)
    limit = time.perf_counter() - began
    ours = by_turns[100][2].ours
    figures.append(show(Figure("100 turns, vs InMemorySaver: time", "s", ours, limit, 2)))
    disk = [(by_turns[turns][0].ours, by_turns[turns][0].peers) for turns in GROWTH]
    mine, its = exponent([pair[0] for pair in disk]), exponent([pair[1] for pair in disk])
    figures.append(Figure("growth of disk with turns: exponent", "", mine, its, None))
    print(
        f"{'growth of disk with turns: exponent':<52} {mine:>9.3f} {its:>9.3f}   target <= 1.15", flush=True
    )
    draw(disk, picture)
    return figures


def draw(disk: Sequence[tuple[float, float]], picture: Path) -> None:
    try:
        from matplotlib.figure import Figure as Canvas
        from matplotlib.ticker import FuncFormatter, NullLocator
    except ImportError:
        print("The picture of the growth is skipped. Install the dependency group `bench` for matplotlib.")
        return
    canvas = Canvas(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    lines = [("langgraph-checkpoint-postgres", "#b04a3a", 1), ("langgraph-durable", "#2a6f97", 0)]
    for label, color, side in lines:
        sizes = [pair[side] for pair in disk]
        axes.plot(GROWTH, sizes, "o-", color=color, label=label)
        for turns, size in zip(GROWTH, sizes, strict=True):
            text = f"{size:.0f}" if size >= 10 else f"{size:.1f}"
            axes.annotate(
                text,
                (turns, size),
                color=color,
                textcoords="offset points",
                xytext=(0, 8),
                ha="center",
                fontsize=8,
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="turns of a conversation, three messages of 1.1 KB each",
        ylabel="MB on disk, every checkpoint kept",
        xticks=GROWTH,
        xticklabels=[str(turns) for turns in GROWTH],
        ylim=(0.5 * min(map(min, disk)), 2 * max(map(max, disk))),
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.grid(visible=True, alpha=0.25)
    axes.legend()
    canvas.savefig(picture, dpi=150)
    print(f"drawn: {picture}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/storage.json"))
    parser.add_argument("--picture", type=Path, default=Path("benchmarks/growth.png"))
    options = parser.parse_args()
    with embedded.database() as server:
        print(f"{'':<52} {'ours':>9} {'peer':>9}")
        figures = asyncio.run(run(server, options.picture))
        write_json(figures, options.json, server_version(server))


if __name__ == "__main__":
    main()
