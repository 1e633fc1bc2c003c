"""The kill matrix: an effect whose process dies at each boundary, in each kind of run, resumed in each way.

In every cell the vendor has one payment, and the graph knows it; or a human is asked, after whose answer it is so.
`python -m tests.acceptance.kill_matrix` (`make torture`) runs all cells and prints them as a table.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from langgraph_durable import DurableSaver, Happened, NotHappened, embedded
from tests.acceptance.driving import thread
from tests.acceptance.effect_workers import Kind, Request, Worker, run, started
from tests.vendor import Rules, Vendor, running_vendor

_orders = itertools.count()

HELD = {
    "vendor, dropped": "before commit",
    "vendor, late commit": "before commit",
    "vendor, committed": "after commit",
}

# In the order in which a run passes them.
POINTS = (
    "before asking put",
    "after asking put",
    "before claim",
    "after claim",
    "before issue",
    "after issue",
    "before request",
    "vendor, dropped",
    "vendor, late commit",
    "vendor, committed",
    "after response",
    "before complete",
    "after complete",
    "before writes put",
    "after writes put",
    "before result put",
    "after result put",
)  # fmt: skip
_COMPLETED = POINTS.index("after complete")
_SENT = POINTS.index("vendor, dropped")

RESUMES = (
    "None, verify",  # invoke(None), and the vendor is asked
    "None, vendor's key",  # invoke(None): a vendor that honours the key gets the request again
    "None, resolve",  # EffectUnknownError, decided out of band, invoke(None)
    "None, human",  # asked by interrupt, Command(resume)
    "None, verify, killed again",  # as its outcome is recorded
    "None, human, killed again",  # as the answer, or its decision's outcome, is recorded
    "same input",  # the input again, and the vendor is asked
    "same input, human",
    "retry policy",  # EffectInFlightError and EffectUnknownError, retried by the node's retry policy
    "beside, killed",  # another process runs while the first is suspended, which is then killed
    "beside, goes on",  # another process runs while the first is suspended, which then continues
)


@dataclass(frozen=True)
class Setting:
    """A kind of effect in a kind of run."""

    kind: Kind
    durability: str
    identity: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.durability}, {self.identity}"

    def passes(self, point: str) -> bool:
        """Return whether such a run passes a point."""
        if point.endswith("issue"):
            return self.kind == "raw"
        return self.durability != "exit" or not point.endswith(("asking put", "writes put"))


SETTINGS = (
    Setting("tool", "sync", "call"),
    Setting("tool", "async", "call"),
    Setting("tool", "async", "thread"),
    Setting("tool", "exit", "key"),
    Setting("node", "async", "call"),
    Setting("raw", "sync", "key"),
    Setting("wrapped", "sync", "call"),
    Setting("wrapped", "async", "call"),
    Setting("wrapped", "exit", "thread"),
    Setting("send", "sync", "call"),
    Setting("send", "async", "call"),
    Setting("send", "exit", "key"),
    Setting("agent", "sync", "call"),
    Setting("agent", "async", "call"),
    Setting("agent", "exit", "thread"),
    Setting("subgraph", "sync", "call"),
    Setting("subgraph", "async", "call"),
    Setting("stateful subgraph", "sync", "call"),
    Setting("stateful subgraph", "async", "call"),
    Setting("task", "sync", "call"),
    Setting("task", "async", "call"),
    Setting("task", "exit", "key"),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One case of the matrix."""

    setting: Setting
    point: str
    resume: str
    asynchronous: bool

    def __str__(self) -> str:
        return (
            f"{self.setting}, {'async' if self.asynchronous else 'sync'} graph | {self.point} | {self.resume}"
        )

    @property
    def needs_context(self) -> bool:
        """Whether an effect is called where LangGraph gives async runs no context before Python 3.11."""
        return self.asynchronous and self.setting.kind in ("task", "raw", "node")

    @property
    def asks_anew(self) -> bool:
        """Whether the model asks again after its first request was carried out: a call-scoped effect is a new one then.

        A new message of the model is a new request, unless the end of the first one is unknown. If the same input is
        to mean the same payment, the policy says so by scope="thread" or key=.
        """
        if self.setting.identity != "call":
            return False
        at = POINTS.index(self.point)
        if self.resume.startswith("same input"):
            return at >= _COMPLETED
        # Both processes ask the model before either has stored its message.
        return self.resume == "beside, goes on" and self.point == "before asking put"


def cells() -> Iterator[Cell]:
    for setting, point, resume, asynchronous in itertools.product(SETTINGS, POINTS, RESUMES, (False, True)):
        if setting.passes(point):
            yield Cell(setting, point, resume, asynchronous)


def sample() -> list[Cell]:
    """Return some cells, the same ones each time; each point, resume and setting is in several of them."""
    return random.Random(0).sample(list(cells()), 128)


class CellFailedError(Exception):
    """A cell ended as it must not."""


class Case:
    """One run of a cell."""

    def __init__(self, cell: Cell, conninfo: str, saver: DurableSaver, vendor: Vendor) -> None:
        self.cell = cell
        self.saver = saver
        self.log = saver.effects
        self.vendor = vendor
        self.order = f"order-{os.getpid()}-{next(_orders)}"
        self.notes: list[str] = []
        human = "human" in cell.resume
        self.request = Request(
            order=self.order,
            conninfo=conninfo,
            vendor=vendor,
            kind=cell.setting.kind,
            asynchronous=cell.asynchronous,
            durability=cell.setting.durability,
            named=cell.setting.identity == "key",
            scope="thread" if cell.setting.identity == "thread" else "call",
            verify=not human and cell.resume not in ("None, resolve", "None, vendor's key"),
            on_unknown="ask" if human else "retry" if cell.resume == "None, vendor's key" else "raise",
        )

    def run(self) -> str:
        """Run the cell, and return in a word or two how it ended.

        Raises:
            CellFailedError: It ended as it must not.
        """
        if self.cell.resume.startswith("beside"):
            self._run_beside()
        else:
            self._kill_first()
            self._expect_no_early_payment()
            self._resume()
        self._expect_once()
        return ", ".join(dict.fromkeys(self.notes)) or "one"

    # --- the first process ---

    def _kill_first(self) -> None:
        point = self.cell.point
        if point in HELD:
            self.vendor.set_rules(self.order, Rules(hold=HELD[point]))  # type: ignore[arg-type]
            with started(run, self.request) as worker:
                self.vendor.wait_held(self.order)
                worker.kill()
            self._release()
            return
        with started(run, replace(self.request, point=point)) as worker:
            worker.die()

    def _release(self) -> None:
        """Let the vendor continue a request whose client is dead."""
        self.vendor.release(self.order, commit=self.cell.point != "vendor, dropped")
        if self.cell.point == "vendor, late commit":
            deadline = time.monotonic() + 30
            while not self.vendor.payments(self.order):
                self._expect(time.monotonic() < deadline, "the vendor does not commit")

    def _expect_no_early_payment(self) -> None:
        point, count = self.cell.point, len(self.vendor.payments(self.order))
        if point.endswith("asking put") and self.cell.setting.durability == "async":
            # Another thread or task puts the checkpoint, so the tool races the kill; but it waits for the put.
            if point.startswith("before") and self.cell.setting.identity == "call":
                self._expect(
                    not list(self.log.list(thread_id=self.order)),
                    "an effect before its checkpoint was stored",
                )
            return
        sent = POINTS.index(point) > _SENT
        self._expect(count == int(sent), f"paid {count} times at the kill")

    # --- the next ones ---

    def _go(self, request: Request) -> tuple[str, Any]:
        """Run a worker to its end; with the input, if nothing is stored to continue from."""
        if not request.input and self._has_nothing():
            request = replace(request, input=True)
        with started(run, request) as worker:
            end = worker.finish()
        self._expect(end is not None, "a worker died")
        return end  # type: ignore[no-any-return]

    def _go_on_again(self, request: Request) -> tuple[str, Any]:
        """Run a worker that dies if it records an outcome, and then another one."""
        if not request.input and self._has_nothing():
            request = replace(request, input=True)
        with started(run, replace(request, point="after complete")) as worker:
            end = worker.die_or_finish()
        if end is not None:
            return end  # type: ignore[no-any-return]
        self.notes.append("killed again")
        return self._go(replace(request, input=False, answer=None))

    def _resume(self) -> None:
        resume = self.cell.resume
        onwards = replace(self.request, input=resume.startswith("same input"))
        if resume == "retry policy":
            # The log does not wait: effects in flight, and a vendor that is away, are left to the node's policy.
            onwards = replace(onwards, retry=True, wait=0.0, flaky=True)
        again = resume == "None, verify, killed again"
        end, said = self._go_on_again(onwards) if again else self._go(onwards)
        if end == "asked":
            self.notes.append("asked")
            self._expect(said["args"] == {"order": self.order, "cents": 500}, f"asked about {said['args']}")
            done = self.vendor.payments(self.order)
            answer = {"effect": said["effect"], "decision": "happened" if done else "retry"}
            answering = replace(onwards, input=False, answer=answer | ({"result": done[0]} if done else {}))
            end, said = self._go_on_again(answering) if resume.endswith("again") else self._go(answering)
        elif end == "EffectUnknownError":
            self._expect(resume == "None, resolve", said)
            self.notes.append("unknown")
            [pending] = self.log.pending(self.order)
            done = self.vendor.payments(self.order)
            self.log.resolve(pending.effect_id, Happened(done[0]) if done else NotHappened(), actor="cell")
            end, said = self._go(replace(onwards, input=False))
        self._expect_finished(end, said)

    def _run_beside(self) -> None:
        point, goes_on = self.cell.point, self.cell.resume == "beside, goes on"
        # The first one is alive, so its lease must outlast a slow machine.
        self.request = first_request = replace(self.request, lease=2.0)
        if point in HELD:
            self.vendor.set_rules(self.order, Rules(hold=HELD[point]))  # type: ignore[arg-type]
        else:
            first_request = replace(first_request, point=point, on_point="stand still")
        with started(run, first_request) as first:
            if point in HELD:
                self.vendor.wait_held(self.order)
            else:
                self._expect(first.hear() == ("reached", point), "the point was not reached")
            beside = replace(self.request, input=self._has_nothing(), wait=0.0 if goes_on else 30.0)
            with started(run, beside) as second:
                said = second.hear()
                if said[0] == "waits":
                    self.notes.append("waits")
                    if goes_on:
                        said = second.finish()
                        self._expect(said[0] == "EffectInFlightError", f"{said}, while the first goes on")
                if goes_on:
                    self._go_on(first)
                else:
                    first.kill()
                    if point in HELD:
                        self._release()
                if said[0] == "waits":
                    said = second.finish()
        if said[0] != "EffectInFlightError":
            self._expect_finished(*said)
        self._expect_finished(*self._go(replace(self.request, input=False)))

    def _has_nothing(self) -> bool:
        return self.saver.get_tuple(thread(self.order)) is None

    def _go_on(self, first: Worker) -> None:
        if self.cell.point in HELD:
            # A vendor that drops a request says so, and the client still does not know its fate.
            self.vendor.release(self.order, commit=self.cell.point != "vendor, dropped")
        else:
            first.say()
        end = first.finish()
        if end[0] == "RuntimeError" and self.cell.point == "vendor, dropped":
            self.notes.append("dropped")
            return
        self._expect_finished(*end)

    # --- expectations ---

    def _expect_finished(self, end: str, said: Any) -> None:
        self._expect(end == "finished", f"{end}: {said}")
        paid = [payment["payment"] for payment in self.vendor.payments(self.order)]
        self._expect(any(payment in said for payment in paid), f"the graph knows {said}, paid is {paid}")

    def _expect_once(self) -> None:
        count, effects = len(self.vendor.payments(self.order)), list(self.log.list(thread_id=self.order))
        self._expect(not self.log.pending(self.order), "a decision is still asked for")
        states = Counter(found.state for found in effects)
        # Beside the completed one there may be one that was found not to have happened.
        self._expect(set(states) <= {"completed", "failed"} and states["completed"] > 0, f"{dict(states)}")
        if (
            count == 2
            and self.cell.asks_anew
            and len({found.message_id or found.task_id for found in effects}) == 2
        ):
            self.notes.append("requested anew")
            return
        self._expect(count == 1, f"paid {count} times")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise CellFailedError(f"{self.cell} ({self.order}): {otherwise}")


def run_cell(cell: Cell, conninfo: str, saver: DurableSaver, vendor: Vendor) -> str:
    return Case(cell, conninfo, saver, vendor).run()


# --- the whole matrix ---


def _attempt(cell: Cell, conninfo: str, saver: DurableSaver, vendor: Vendor) -> tuple[Cell, str, str | None]:
    try:
        return cell, run_cell(cell, conninfo, saver, vendor), None
    except Exception as exc:
        fault = str(exc) if isinstance(exc, CellFailedError) else f"{cell}: {exc!r}"
        return cell, "FAULT", fault


def table(results: Sequence[tuple[Cell, str]]) -> str:
    """Return the matrix: a row for each setting and point, a column for each way to resume."""
    rows: dict[tuple[str, str], dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for cell, end in results:
        rows[str(cell.setting), cell.point][cell.resume][end] += 1
    heads = ["setting", "killed", *RESUMES]
    lines = [heads]
    for (setting, point), ends in rows.items():
        # Sync and async graphs, in one word if they agree.
        columns = [" / ".join(ends[resume]) for resume in RESUMES]
        lines.append([setting, point, *columns])
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) for line in lines)


def main() -> int:
    can = [cell for cell in cells() if sys.version_info >= (3, 11) or not cell.needs_context]
    chosen = [cell for cell in can if all(word in str(cell) for word in sys.argv[1:])]
    began, faults, results = time.monotonic(), [], []
    with (
        embedded.database(fsync=False) as conninfo,
        running_vendor() as vendor,
        DurableSaver.from_conn_string(conninfo) as saver,
        ThreadPoolExecutor(max_workers=3 * (os.cpu_count() or 1)) as pool,
    ):
        saver.setup()
        for cell, end, fault in pool.map(lambda cell: _attempt(cell, conninfo, saver, vendor), chosen):
            results.append((cell, end))
            if fault is not None:
                faults.append(fault)
                print("FAULT", fault, flush=True)
            if len(results) % 100 == 0:
                print(f"{len(results)} of {len(chosen)} cells, {time.monotonic() - began:.0f} s", flush=True)
    print(table(results))
    print(f"{len(results)} cells, {len(faults)} faults, {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
