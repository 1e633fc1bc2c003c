"""Times as Postgres holds them, some of which Python cannot: infinite ones, and years before 1 or after 9999.

Only damage, or a hand, leaves one of those in a row. psycopg refuses it, and with it the whole answer it is in: one row
would hide all the others. Here it is loaded as a time that says what it is, so that whatever reads the row can name it.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format

_TYPE = psycopg.adapters.types["timestamptz"].oid
_Native = psycopg.adapters.get_loader(_TYPE, Format.BINARY)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class OutOfRange(datetime):
    """A time that Python cannot hold.

    It compares with others as the stored one does: it is the last of all, or the first. (But for a day, so that it can
    be told in any time zone.)
    """

    __slots__ = ()


_LAST = OutOfRange(9999, 12, 31, tzinfo=timezone.utc)
_FIRST = OutOfRange(1, 1, 2, tzinfo=timezone.utc)


class _TimeLoader(Loader):
    format = Format.BINARY

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        assert _Native is not None  # noqa: S101 (psycopg has one)
        self._load = _Native(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            loaded: datetime = self._load(data)
        except psycopg.DataError:
            return _FIRST if bytes(data[:1]) >= b"\x80" else _LAST
        return loaded


ADAPTERS = AdaptersMap(psycopg.adapters)
"""How our own cursors read and write values, whatever the caller's connection has for its own."""

ADAPTERS.register_loader(_TYPE, _TimeLoader)


def time_fault(**columns: datetime | None) -> str | None:
    """Return what is wrong with the times of a row, by column; None if nothing is."""
    wrong = [name for name, time in columns.items() if isinstance(time, OutOfRange)]
    if not wrong:
        return None
    return f"{', '.join(wrong)}: infinite, or outside of the years 1 to 9999"


def time_of(ulid: uuid.UUID) -> datetime:
    """Return the time that a ULID tells."""
    try:
        return _EPOCH + timedelta(milliseconds=ulid.int >> 80)
    except OverflowError:
        return _LAST
