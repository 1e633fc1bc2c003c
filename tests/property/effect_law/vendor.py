"""The vendor of the law's programs: a file that outlives killed processes, with one line for each order carried out."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DID = re.compile(r"did (\S+) as (\S+)")


@dataclass(frozen=True)
class Sale:
    """One order that was carried out."""

    thread: str
    order: str
    key: str
    receipt: str

    @property
    def text(self) -> str:
        """What the caller hears; also what `verify` reports."""
        return f"did {self.order} as {self.receipt}"


def receipts_in(text: str) -> list[tuple[str, str]]:
    """Return the orders and receipts that a text reports."""
    return _DID.findall(text)


def kind_of(order: str) -> str:
    """Return an order without what was chosen at random or by a human, behind a tilde."""
    return order.partition("~")[0]


@dataclass(frozen=True)
class Vendor:
    """Carries out orders, and can be asked about them by idempotency key."""

    directory: Path
    honours_keys: bool

    @contextmanager
    def _books(self) -> Iterator[Any]:
        with (self.directory / "sales").open("a+") as books:
            fcntl.flock(books, fcntl.LOCK_EX)
            books.seek(0)
            yield books

    def sell(self, thread: str, order: str, key: str) -> Sale:
        with self._books() as books:
            lines = books.readlines()
            if self.honours_keys:
                for sale in (Sale(*json.loads(line)) for line in lines):
                    if sale.key == key:
                        return sale
            sale = Sale(thread, order, key, f"r{len(lines)}")
            books.write(json.dumps([sale.thread, sale.order, sale.key, sale.receipt]) + "\n")
            return sale

    def sales(self) -> list[Sale]:
        with self._books() as books:
            return [Sale(*json.loads(line)) for line in books]

    def refuse(self, thread: str, calls: Sequence[str]) -> None:
        """Note that a provider would refuse a conversation, for the tool calls that it leaves without an answer."""
        with (self.directory / f"refused-{thread}").open("a") as noted:
            noted.write(f"{', '.join(calls)}\n")

    def refused(self, thread: str) -> list[str]:
        """Return the calls of each conversation that a provider would have refused."""
        path = self.directory / f"refused-{thread}"
        return path.read_text().splitlines() if path.exists() else []

    def find(self, key: str) -> Sale | None:
        return next((sale for sale in self.sales() if sale.key == key), None)

    def counts(self, thread: str) -> Counter[str]:
        """Return how often each kind of order was carried out for a thread."""
        return Counter(kind_of(sale.order) for sale in self.sales() if sale.thread == thread)

    def is_first(self, what: str) -> bool:
        """Return whether this is asked for the first time, in any process."""
        try:
            os.close(os.open(self.directory / f"once {what}".replace("/", "-"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
