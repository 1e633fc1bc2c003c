"""Runs cases: forks a process for each part of a history, and judges what they report."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.property.effect_law import oracle
from tests.property.effect_law.life import Life
from tests.property.effect_law.programs import Case, Flow
from tests.property.effect_law.vendor import Vendor

_TIMEOUT = 60.0
_REFUSED = "the arguments of an effect must be plain data"

Mutation = Callable[[], None]


@dataclass
class Verdict:
    """What came of a case."""

    case: Case
    problems: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    sales: list[str] = field(default_factory=list)
    kills: int = 0
    stopped: bool = False
    """Whether the run ended with the error that its policy or arguments ask for."""
    seconds: float = 0.0


@contextmanager
def _directory() -> Iterator[Path]:
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="effect-law-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def run_case(case: Case, conninfo: str, mutation: Mutation | None = None) -> Verdict:
    """Run a case, and judge it. This process must have no other threads, because it forks."""
    started = time.monotonic()
    verdict = Verdict(case)
    threads = [f"{os.getpid()}-{time.time_ns()}-{number}" for number in range(case.threads)]
    with _directory() as directory:
        start = 0
        while True:
            status = _fork_and_wait(lambda s=start: _life(case, directory, conninfo, threads, s, mutation))  # type: ignore[misc]
            verdict.reports = _read_reports(directory)
            if status == 0:
                break
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                verdict.kills += 1
                numbers = [r["number"] for r in verdict.reports if r["what"] == "before"]
                if start <= len(case.actions) - 1 and verdict.kills <= len(case.actions):
                    start = max([start, *numbers]) + 1
                    continue
            verdict.problems.append(f"the process ended with status {status}: {_read_failure(directory)}")
            break
        vendor = Vendor(directory, case.policy.honours_keys)
        verdict.sales = [f"{s.order} {s.receipt} {s.thread[-1]}" for s in vendor.sales()]
        if not verdict.problems:
            for thread in threads:
                _judge(verdict, thread, vendor.counts(thread))
                dangling = vendor.refused(thread)
                verdict.problems += [f"a model saw calls without an answer: {calls}" for calls in dangling]
    verdict.seconds = time.monotonic() - started
    return verdict


def _life(
    case: Case, directory: Path, conninfo: str, threads: list[str], start: int, mutation: Mutation | None
) -> None:
    try:
        faulthandler.enable((directory / "failure").open("w"))
        logging.disable(logging.CRITICAL)  # connections that are closed by a kill
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        if mutation is not None:
            mutation()
        Life(case, directory, conninfo, threads).live(start)
    except BaseException:
        (directory / "failure").write_text(traceback.format_exc())
        raise


def _fork_and_wait(work: Callable[[], None]) -> int:
    """Run work in a forked process, and return its wait status; kill it if it takes too long."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + _TIMEOUT
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGABRT)  # faulthandler writes the stacks
            return os.waitpid(pid, 0)[1]
        time.sleep(0.003)


def _read_reports(directory: Path) -> list[dict[str, Any]]:
    path = directory / "reports"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _read_failure(directory: Path) -> str:
    path = directory / "failure"
    return path.read_text() if path.exists() else "no report"


# --- the law ---


def _judge(verdict: Verdict, thread: str, sold: Counter[str]) -> None:
    """Compare what the vendor did for a thread with what was wanted."""
    case = verdict.case
    reports = [report for report in verdict.reports if report["thread"] == thread]
    end = reports[-1]
    if end["what"] != "end":
        verdict.problems.append(f"the history did not end: {end}")
        return
    if _stopped_as_asked(case, reports, sold):
        verdict.stopped = True
    elif not end["finished"] or end["missing"]:
        verdict.problems.append(f"stuck, missing {end['missing']}: {end['problem']}")
    verdict.problems += end["wrong"]
    least, most = _least_and_most(case, reports)
    # A request that was abandoned may be made again under another key, if that is harmless.
    repeatable = case.policy.unknown == "idempotent" and any(action.fault for action in case.actions)
    for order in sorted({*least, *most, *sold}):
        count = sold[order]
        if count > most[order] and not repeatable:
            verdict.problems.append(f"{order}: {count} times, wanted {_range(least[order], most[order])}")
        if count < least[order]:
            verdict.problems.append(f"{order}: {count} times, {least[order]} callers were served")


def _range(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _least_and_most(case: Case, reports: list[dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Return the bounds of what was wanted.

    At least what any finished branch of the history received, at most what the input that asked for most wanted.
    They are equal unless a branch was given up before it was finished.
    """
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for report in reports:
        if report["what"] in ("before", "end") and report["finished"]:
            least |= oracle.count_delivered(report["texts"])
        if "wanted" in report:
            most |= Counter(report["wanted"])
    if case.policy.on_fork == "new":
        least = most = _sum_of_branches(reports)
    if case.policy.scope == "thread":
        least, most = oracle.once_per_thread(least), oracle.once_per_thread(most)
    return least, most


def _sum_of_branches(reports: list[dict[str, Any]]) -> Counter[str]:
    """Return what each action added to the branch it was on."""
    total: Counter[str] = Counter()
    for report in reports:
        if report["what"] == "after":
            total += oracle.count_delivered(report["after"]) - oracle.count_delivered(report["before"])
        if report["what"] == "end":
            total += oracle.count_delivered(report["texts"]) - oracle.count_delivered(_last_after(reports))
    return total


def _last_after(reports: list[dict[str, Any]]) -> list[str]:
    return next((r["after"] for r in reversed(reports) if r["what"] == "after"), [])


def _stopped_as_asked(case: Case, reports: list[dict[str, Any]], sold: Counter[str]) -> bool:
    problem = str(reports[-1]["problem"])
    if case.policy.stops_duplicates and problem.startswith("EffectDuplicateError"):
        # Only what took place may stand in the way.
        return bool(sold - oracle.count_delivered(reports[-1]["texts"]))
    if case.policy.on_fork == "raise" and problem.startswith("EffectForkedError"):
        return True
    refuses = isinstance(case.program, Flow) and case.program.argument != "plain"
    return refuses and _REFUSED in problem


def group(verdicts: list[Verdict]) -> dict[str, list[Verdict]]:
    """Group failed cases by their first problem's words."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.problems:
            found[verdict.problems[0].split(":")[0]].append(verdict)
    return found
