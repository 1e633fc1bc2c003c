"""Command line: see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from pprint import pformat

from langgraph_durable import DurableSaver, embedded
from tests.property.effect_law.generator import case_of
from tests.property.effect_law.running import Verdict, run_case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.effect_law", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = options.seeds or list(range(options.first, options.first + options.programs))
    with embedded.database(fsync=False, settings={"autovacuum": "off"}) as conninfo:
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()
        failed = 0
        started = time.monotonic()
        for seed in seeds:
            verdict = run_case(case_of(seed), conninfo)
            if verdict.problems or options.verbose:
                failed += bool(verdict.problems)
                show(verdict, options.verbose)
        print(f"{len(seeds)} programs, {failed} against the law, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


def show(verdict: Verdict, verbose: bool) -> None:
    print(f"seed {verdict.case.seed} ({verdict.seconds:.1f} s, {verdict.kills} kills)")
    for problem in verdict.problems:
        print("  PROBLEM", problem[:3000])
    print("  " + pformat(verdict.case, width=110).replace("\n", "\n  "))
    if verbose:
        for report in verdict.reports:
            print("   ", {k: v for k, v in report.items() if k != "thread"})
        print("   ", verdict.sales)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
