"""Load timestamps that Python cannot represent: infinity, and years before 1 or after 9999.

Only damage or manual edits store them. psycopg raises for one, and the whole result is lost with it. Here it loads
as OutOfRange, so that the code that reads the row can name the column.
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
    """The nearest representable time to one that Python cannot represent.

    It sorts as the stored time does. The first is a day late, so that it converts to every time zone.
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
"""The adapters of our cursors, independent of what the caller's connection has registered."""

ADAPTERS.register_loader(_TYPE, _TimeLoader)


def time_fault(**columns: datetime | None) -> str | None:
    """Return what is wrong with a row's times, by column; None if nothing is."""
    wrong = [name for name, time in columns.items() if isinstance(time, OutOfRange)]
    if not wrong:
        return None
    return f"{', '.join(wrong)}: infinite, or outside of the years 1 to 9999"


def time_of(ulid: uuid.UUID) -> datetime:
    """Return the timestamp in a ULID."""
    try:
        return _EPOCH + timedelta(milliseconds=ulid.int >> 80)
    except OverflowError:
        return _LAST
