"""Run every benchmark, print one table, and write one JSON file: `make bench`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchmarks import effects, latency, load, retention, storage, table_size, throughput
from benchmarks.harness import server_version, write_json
from langgraph_durable import embedded


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--json", type=Path, default=Path("benchmarks/latest.json"), help="the file to write the figures to"
    )
    options = parser.parse_args()
    with embedded.database() as server:
        version = server_version(server)
        print(f"Postgres {version}, fsync as configured on the server; medians of interleaved rounds\n")
        print(f"{'':<52} {'ours':>9} {'peer':>9}")
        parts = (latency, throughput, load, table_size, storage, retention, effects)
        figures = [figure for part in parts for figure in asyncio.run(part.run(server))]
    write_json(figures, options.json, version)
    print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
