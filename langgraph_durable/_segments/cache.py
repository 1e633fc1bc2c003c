"""What a process remembers of segments, so that it neither sends what is stored nor fetches what it had.

Two things, in one bound of bytes:

- the bytes of segments, under their hashes: content-addressed, so they are right whoever stored them, and for any
  thread. Bytes, not values: what two reads return must share nothing that can change;
- for each thread, the hashes that were seen to be stored in it: a guess, since another process may prune the thread, so
  the statement that relies on it checks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

DEFAULT_CACHE_BYTES = 64 << 20

_SEGMENT_COST = 200  # bytes, about, that an entry takes beside its segment
_KNOWN_COST = 128
_THREAD_COST = 512


class SegmentCache:
    """Shared by a saver and its clones; safe across threads. The least recently used goes first.

    Args:
        size: Bytes to keep at most; a quarter is for the hashes that are known to be stored.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._segments: OrderedDict[bytes, bytes] = OrderedDict()
        self._left = size - size // 4
        self._most = size // 4
        self._known: OrderedDict[str, set[bytes]] = OrderedDict()
        self._known_left = size // 4
        self.hits = 0
        self.misses = 0

    def add(self, segments: Mapping[bytes, bytes]) -> None:
        """Keep segments' bytes, as far as there is room."""
        with self._lock:
            for hash_, data in segments.items():
                if hash_ in self._segments:
                    self._segments.move_to_end(hash_)
                    continue
                if len(data) > self._most:  # it would drive out too many
                    continue
                self._segments[hash_] = data
                self._left -= len(data) + _SEGMENT_COST
            while self._left < 0 and self._segments:
                _, data = self._segments.popitem(last=False)
                self._left += len(data) + _SEGMENT_COST

    def find(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the bytes of those segments that are kept."""
        found = {}
        with self._lock:
            for hash_ in hashes:
                data = self._segments.get(hash_)
                if data is not None:
                    self._segments.move_to_end(hash_)
                    found[hash_] = data
                    self.hits += 1
                else:
                    self.misses += 1
        return found

    def known(self, thread_id: str) -> set[bytes]:
        """Return the hashes that were seen to be stored in a thread: the caller's own set."""
        with self._lock:
            if (known := self._known.get(thread_id)) is None:
                return set()
            self._known.move_to_end(thread_id)
            return set(known)

    def note(self, thread_id: str, hashes: Iterable[bytes]) -> None:
        """Remember that segments are stored in a thread."""
        with self._lock:
            known = self._known.pop(thread_id, set())
            self._known_left += _cost(known)
            known.update(hashes)
            if not known:
                return
            self._known[thread_id] = known
            self._known_left -= _cost(known)
            while self._known_left < 0:
                _, dropped = self._known.popitem(last=False)
                self._known_left += _cost(dropped)

    def forget(self, thread_id: str) -> None:
        """Know of no segment that it is stored in a thread: some were deleted."""
        with self._lock:
            self._known_left += _cost(self._known.pop(thread_id, set()))


def _cost(known: set[bytes]) -> int:
    """Bytes, about, that a thread's hashes take; none if it has none, and so no entry."""
    return _THREAD_COST + len(known) * _KNOWN_COST if known else 0
