"""Run 200 graphs with one saver and print the peak memory of the process in MB.

`python -m benchmarks.process ours|peer CONNINFO KILOBYTES`. The other saver is not imported.
"""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from psycopg.rows import dict_row

from benchmarks.graphs import POOL_SIZE, AnySaver, five_steps, run_graphs

TIMES = 3


async def open_saver(stack: AsyncExitStack, which: str, conninfo: str) -> AnySaver:
    if which == "ours":
        # Imported here so that the other saver does not count.
        from langgraph_durable import DurableSaver

        saver = DurableSaver.from_conn_string(conninfo, min_size=POOL_SIZE, max_size=POOL_SIZE)
        await saver.asetup()
        return await stack.enter_async_context(saver)
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool = AsyncConnectionPool[Any](
        conninfo, min_size=POOL_SIZE, max_size=POOL_SIZE, kwargs=options, open=False
    )
    return AsyncPostgresSaver(await stack.enter_async_context(pool))


async def run(which: str, conninfo: str, kilobytes: int) -> None:
    async with AsyncExitStack() as stack:
        graph = five_steps(await open_saver(stack, which, conninfo))
        for _ in range(TIMES):
            await run_graphs(graph, kilobytes)


def peak_megabytes() -> float:
    """Return the peak memory of this process; getrusage would include its parent's."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e6


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    print(peak_megabytes())
