"""Runs many cases in several forked processes."""

from __future__ import annotations

import json
import os
import re
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.property.effect_law.generator import case_of
from tests.property.effect_law.programs import Case
from tests.property.effect_law.running import Mutation, Verdict, run_case

_PROGRAMMING_ERROR = re.compile(r"\b(Attribute|Import|Key|Name|Type)Error\b")
_RUNS = 3
"""How often a case must pass without a mutation, and may run with it until it fails again, before that is blamed."""


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    problems: list[str]
    seconds: float
    kills: int
    stopped: bool


def run_seeds(
    seeds: Iterable[int],
    conninfo: str,
    *,
    workers: int = 2,
    mutation: Mutation | None = None,
    only: Callable[[Case], bool] = lambda case: True,
    first_only: bool = False,
) -> list[Result]:
    """Run cases and return what came of each, by seed; with `first_only`, soon after the first fails.

    A mutated case counts as failed only if the same case passes without the mutation.
    """
    chosen = [seed for seed in seeds if only(case_of(seed))]
    with tempfile.TemporaryDirectory(prefix="effect-law-pool-") as name:
        directory = Path(name)
        children = []
        for worker in range(workers):
            pid = os.fork()
            if pid == 0:
                _work(chosen[worker::workers], conninfo, directory, worker, mutation, first_only)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        results = _read(directory)
        if failures := sorted(directory.glob("failure-*")):
            raise RuntimeError(failures[0].read_text())
    if not first_only and len(results) != len(chosen):
        raise RuntimeError(f"{len(results)} of {len(chosen)} cases have a result")
    return sorted(results, key=lambda result: result.seed)


def _work(
    seeds: Sequence[int],
    conninfo: str,
    directory: Path,
    worker: int,
    mutation: Mutation | None,
    first_only: bool,
) -> None:
    """Run a worker's share of the seeds, and end the process."""
    status = 1
    try:
        stop = directory / "stop"
        with (directory / f"results-{worker}").open("a", buffering=1) as results:
            for seed in seeds:
                if stop.exists():
                    break
                result = _run(case_of(seed), conninfo, mutation)
                results.write(json.dumps(vars(result)) + "\n")
                if result.problems and first_only:
                    stop.touch()
        status = 0
    except BaseException:
        (directory / f"failure-{worker}").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _run(case: Case, conninfo: str, mutation: Mutation | None) -> Result:
    verdict = run_case(case, conninfo, mutation)
    problems = verdict.problems
    if problems and mutation is not None:
        _require_fitting(verdict)
        fails_again = any(run_case(case, conninfo, mutation).problems for _ in range(_RUNS))
        if not fails_again or any(run_case(case, conninfo).problems for _ in range(_RUNS)):
            problems = []  # the mutation is not to blame
    return Result(case.seed, problems, verdict.seconds, verdict.kills, verdict.stopped)


def _require_fitting(verdict: Verdict) -> None:
    """Refuse a mutation that only breaks the program: what is found then says nothing about the law."""
    said = [str(report.get(name, "")) for report in verdict.reports for name in ("outcome", "problem")]
    for text in (*verdict.problems, *said):
        if _PROGRAMMING_ERROR.search(text):
            raise RuntimeError(f"with what was switched off, seed {verdict.case.seed} does not run: {text}")


def _read(directory: Path) -> list[Result]:
    lines = [line for path in directory.glob("results-*") for line in path.read_text().splitlines()]
    return [Result(**json.loads(line)) for line in lines]
