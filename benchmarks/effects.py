"""Compare the effect log with its lower bound: bare statements on the same pool."""

from __future__ import annotations

from itertools import count
from typing import Any

from psycopg.rows import tuple_row

from benchmarks.harness import Figure, both_savers, compare, mean_ms
from langgraph_durable import DurableSaver, effect

TIMES = 200

CREATE = "CREATE TABLE bare (id bytea PRIMARY KEY, state text NOT NULL, result bytea)"
BEGIN = "INSERT INTO bare (id, state) VALUES (%s, 'issued')"
END = "UPDATE bare SET state = 'completed', result = %s WHERE id = %s"
READ = "SELECT state, result FROM bare WHERE id = %s"


async def run(server: str) -> list[Figure]:
    """Measure, and print a line for each figure."""
    async with both_savers(server) as (ours, _):
        numbers = count()
        log = ours.effects

        @effect(key=lambda number: f"pay {number}", log=log)
        async def pay(number: int) -> dict[str, Any]:
            return {"paid": number}

        await execute(ours, CREATE)

        async def bare() -> None:
            key = b"pay %d" % next(numbers)
            await execute(ours, BEGIN, key)
            await execute(ours, END, b"paid", key)

        async def executed() -> None:
            number = next(numbers)
            assert await pay(number) == {"paid": number}

        async def read() -> None:
            [(state, _)] = await execute(ours, READ, b"pay known")
            assert state == "issued"

        async def replayed() -> None:
            assert await pay(-1) == {"paid": -1}

        await execute(ours, BEGIN, b"pay known")
        await pay(-1)
        return [
            await compare(
                "an effect, begun to completed, vs two bare commits",
                lambda: mean_ms(executed, TIMES),
                lambda: mean_ms(bare, TIMES),
                target=1.3,
            ),
            await compare(
                "an effect, replayed, vs one read by primary key",
                lambda: mean_ms(replayed, TIMES),
                lambda: mean_ms(read, TIMES),
                target=1.2,
            ),
        ]


async def execute(saver: DurableSaver, statement: str, *params: Any) -> list[Any]:
    """Run a statement on the saver's pool, which the effects also use."""
    connections = saver.durable_context.async_connections
    assert connections is not None
    async with (
        connections.checkout() as connection,
        connection.cursor(row_factory=tuple_row, binary=True) as cursor,
    ):
        await cursor.execute(statement, params)
        return await cursor.fetchall() if cursor.description else []
