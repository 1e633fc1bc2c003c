"""Measure two savers in interleaved rounds, and report medians as a table and as JSON."""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.graphs import POOL_SIZE
from langgraph_durable import DurableSaver


@dataclass(frozen=True)
class Figure:
    """One comparison: medians of both savers' rounds."""

    work: str
    unit: str
    ours: float
    peers: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.ours / self.peers


def conninfo_of(peer: AsyncPostgresSaver) -> str:
    """Return the connection string of the database that `both_savers` created."""
    pool: Any = peer.conn
    conninfo: str = pool.conninfo
    return conninfo


@contextmanager
def gc_tuned() -> Iterator[None]:
    """Tune the garbage collector as the documentation advises for many graphs in one process."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


@asynccontextmanager
async def both_savers(server: str) -> AsyncIterator[tuple[DurableSaver, AsyncPostgresSaver]]:
    """Yield this saver and the official one, each on a pool of 16, in one new database."""
    name = f"durable_bench_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    conninfo = make_conninfo(server, dbname=name)
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    try:
        async with (
            DurableSaver.from_conn_string(conninfo, min_size=POOL_SIZE, max_size=POOL_SIZE) as ours,
            AsyncConnectionPool[Any](
                conninfo, min_size=POOL_SIZE, max_size=POOL_SIZE, kwargs=options, open=False
            ) as pool,
        ):
            peer = AsyncPostgresSaver(pool)
            await ours.asetup()
            await peer.setup()
            yield ours, peer
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


async def compare(
    work: str,
    ours: Callable[[], Awaitable[float]],
    peers: Callable[[], Awaitable[float]],
    *,
    unit: str = "ms",
    target: float | None = None,
    rounds: int = 7,
    more_is_better: bool = False,
) -> Figure:
    """Run two measurements in turn, and return the medians of their results, as a line printed.

    Each is run once before, to warm up. The target is a ratio, ours / peers: the largest allowed, or, if
    `more_is_better`, the smallest.
    """
    await ours()
    await peers()
    pairs = [(await ours(), await peers()) for _ in range(rounds)]
    figure = Figure(
        work, unit, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), target
    )
    return show(figure, more_is_better=more_is_better)


def show(figure: Figure, *, more_is_better: bool = False) -> Figure:
    """Print a figure as a line of the table, and return it."""
    verdict = (
        "" if figure.target is None else f"   target {'>=' if more_is_better else '<='} {figure.target:.4g}"
    )
    print(
        f"{figure.work:<52} {figure.ours:>9.3f} {figure.peers:>9.3f} {figure.unit:<4} "
        f"ratio {figure.ratio:6.3f}{verdict}",
        flush=True,
    )
    return figure


async def mean_ms(call: Callable[[], Awaitable[Any]], times: int) -> float:
    """Return the mean duration of a call, in milliseconds."""
    began = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - began) * 1000 / times


def server_version(server: str) -> str:
    with psycopg.connect(server) as connection:
        return connection.info.parameter_status("server_version") or "?"


def write_json(figures: list[Figure], path: Path, server_version: str) -> None:
    """Write figures to a file, with the machine and the versions they were measured on."""
    packages = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-postgres", "psycopg")
    record = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "postgres": server_version,
        "versions": {name: version(name) for name in packages},
        "figures": [asdict(f) | {"ratio": f.ratio} for f in figures],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
