"""A process's cache of segments, so that it neither sends what is stored nor fetches what it had.

What it keeps, and why that is safe: docs/design/segments.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

DEFAULT_CACHE_BYTES = 64 << 20

_SEGMENT_COST = 200  # approximate bytes of an entry besides its segment
_KNOWN_COST = 128
_THREAD_COST = 512


class SegmentCache:
    """An LRU cache, shared by a saver and its clones; safe across threads.

    It keeps the bytes of segments by their hashes, which are right for any thread; and for each thread the hashes that
    were seen to be stored. The latter are a guess, since another process may prune the thread. So the statement that
    relies on them checks. Bytes are kept, not values: two reads must not share anything mutable.

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
        """Keep the bytes of segments."""
        with self._lock:
            for hash_, data in segments.items():
                if hash_ in self._segments:
                    self._segments.move_to_end(hash_)
                    continue
                if len(data) > self._most:  # it would evict too many
                    continue
                self._segments[hash_] = data
                self._left -= len(data) + _SEGMENT_COST
            while self._left < 0 and self._segments:
                _, data = self._segments.popitem(last=False)
                self._left += len(data) + _SEGMENT_COST

    def find(self, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the bytes of the segments that are kept."""
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
        """Return a copy of the hashes that were seen to be stored in a thread."""
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
        """Forget which segments are stored in a thread, since some were deleted."""
        with self._lock:
            self._known_left += _cost(self._known.pop(thread_id, set()))


def _cost(known: set[bytes]) -> int:
    """Return about how many bytes a thread's hashes take; 0 without hashes, since there is no entry then."""
    return _THREAD_COST + len(known) * _KNOWN_COST if known else 0
