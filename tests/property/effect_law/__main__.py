"""Runs the law of effects from the command line.

python -m tests.property.effect_law --programs 2000       # random programs
python -m tests.property.effect_law 17                    # one, with everything that was seen
python -m tests.property.effect_law 17 --shrink           # and a smaller one that still fails
python -m tests.property.effect_law --restore all         # which program finds each restored fault
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pprint import pformat

from langgraph_durable import DurableSaver, embedded
from tests.property.effect_law.faults import FAULTS, RestoredFault
from tests.property.effect_law.generator import case_of
from tests.property.effect_law.pool import Result, run_seeds
from tests.property.effect_law.running import Verdict, run_case
from tests.property.effect_law.shrinking import shrink


def main() -> int:
    options = _parse()
    with embedded.database(fsync=False, settings={"autovacuum": "off"}) as conninfo:
        with DurableSaver.from_conn_string(conninfo) as saver:
            saver.setup()
        if options.restore:
            return _restore_all(options, conninfo)
        if options.seeds:
            return max(_run_one(seed, options, conninfo) for seed in options.seeds)
        return _run_many(options, conninfo)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.property.effect_law",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seeds", nargs="*", type=int, help="run these programs and show what happened")
    parser.add_argument("--programs", type=int, default=200, help="how many programs (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--workers", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("--shrink", action="store_true", help="make failing programs smaller")
    names = ", ".join(fault.name for fault in FAULTS)
    parser.add_argument("--restore", metavar="FAULT", help=f"restore a fault, or all: {names}")
    parser.add_argument(
        "--search", action="store_true", help="find restored faults without the programs known to find them"
    )
    return parser.parse_args()


def _run_one(seed: int, options: argparse.Namespace, conninfo: str) -> int:
    case = case_of(seed)
    verdict = run_case(case, conninfo)
    if verdict.problems and options.shrink:
        case = shrink(case, lambda candidate: bool(run_case(candidate, conninfo).problems))
        verdict = run_case(case, conninfo)
    show(verdict)
    for report in verdict.reports:
        print("   ", report)
    print("    vendor:", ", ".join(verdict.sales))
    return int(bool(verdict.problems))


def _run_many(options: argparse.Namespace, conninfo: str) -> int:
    started = time.monotonic()
    seeds = range(options.first, options.first + options.programs)
    results = run_seeds(seeds, conninfo, workers=options.workers)
    failed = [result for result in results if result.problems]
    for result in failed:
        print(f"{result.seed}: {'; '.join(result.problems)[:300]}")
    killed = sum(bool(result.kills) for result in results)
    stopped = sum(result.stopped for result in results)
    print(
        f"{len(results)} programs, {killed} killed, {stopped} stopped by an error they asked for, "
        f"{len(failed)} against the law, {time.monotonic() - started:.0f} s"
    )
    if failed and options.shrink:
        smallest = shrink(
            case_of(failed[0].seed), lambda candidate: bool(run_case(candidate, conninfo).problems)
        )
        show(run_case(smallest, conninfo))
    return int(bool(failed))


def _restore_all(options: argparse.Namespace, conninfo: str) -> int:
    chosen = [fault for fault in FAULTS if options.restore in ("all", fault.name)]
    if not chosen:
        raise SystemExit(f"there is not a fault named {options.restore!r}; see --help")
    for fault in chosen:
        fault.check()
    return max([_restore(fault, options, conninfo) for fault in chosen])


def _restore(fault: RestoredFault, options: argparse.Namespace, conninfo: str) -> int:
    """Look for a fault: by the programs that are known to find it, and then by all."""
    started = time.monotonic()
    found = None if options.search else _find(fault, fault.seeds, conninfo, workers=1)
    if found is None:
        seeds = range(options.first, options.first + options.programs)
        found = _find(fault, seeds, conninfo, workers=options.workers)
    seconds = time.monotonic() - started
    if found is None:
        print(f"{fault.name}: NOT found by {options.programs} programs, {seconds:.0f} s", flush=True)
        return 1
    print(f"{fault.name}: found by seed {found.seed}, {seconds:.0f} s: {found.problems[0][:150]}", flush=True)
    return 0


def _find(fault: RestoredFault, seeds: Sequence[int], conninfo: str, *, workers: int) -> Result | None:
    """Return the first result against the law; with several workers, one of the first."""
    results = run_seeds(
        seeds, conninfo, workers=workers, mutation=fault.restore, only=fault.concerns, first_only=True
    )
    return next((result for result in results if result.problems), None)


def show(verdict: Verdict) -> None:
    """Print a case as Python, and what is wrong with it."""
    case = verdict.case
    print(f"seed {case.seed} ({verdict.seconds:.1f} s, {verdict.kills} kills)")
    for problem in verdict.problems:
        print("  against the law:", problem[:3000])
    print("  " + pformat(case, width=110).replace("\n", "\n  "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
