"""`make bench`: every benchmark, one table, one JSON file."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import psycopg

from benchmarks import effects, latency, retention
from benchmarks.harness import write_json
from langgraph_durable import embedded


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/latest.json"), help="where the record goes"
    )
    options = parser.parse_args()
    with embedded.database() as server:
        with psycopg.connect(server) as connection:
            server_version = connection.info.parameter_status("server_version") or "?"
        print(f"Postgres {server_version}, fsync as the server has it; medians of interleaved rounds\n")
        print(f"{'':<52} {'ours':>9} {'peer':>9}")
        parts = (latency, retention, effects)
        figures = [figure for part in parts for figure in asyncio.run(part.run(server))]
    write_json(figures, options.json, server_version)
    print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
