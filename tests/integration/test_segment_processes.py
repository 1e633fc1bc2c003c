"""Processes that put, prune, copy and delete on the same threads: no value ever names a segment that is not there.

Each process has a cache of what it believes to be stored, and all the others prove it wrong. They go on for
`DURABLE_TORTURE_SECONDS`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import time
import traceback
from typing import Any

import psycopg

from langgraph_durable import DurableSaver
from langgraph_durable._segments.values import hashes_in, is_index
from langgraph_durable.errors import ParentPrunedError, ThreadDeletedError, ThreadExistsError
from tests.checkpoints import checkpoint_with, config_for

SECONDS = float(os.environ.get("DURABLE_TORTURE_SECONDS", "5"))
PROCESSES = 4
THREADS = ["a", "b", "c"]


def text_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest() * 15


def value_of(numbers: list[int]) -> list[str]:
    return [text_of(number) for number in numbers]


def torture(conninfo: str, seed: int, seconds: float, failures: Any) -> None:
    """Put, get and prune until the time is up. A checkpoint's metadata says what its value must be."""
    dice = random.Random(seed)
    try:
        with DurableSaver.from_conn_string(conninfo, max_size=2) as saver:
            end = time.monotonic() + seconds
            done = 0
            while time.monotonic() < end:
                act(saver, dice, dice.choice(THREADS))
                done += 1
            failures.put(("done", done))
    except BaseException:
        failures.put(("failed", traceback.format_exc()))


def act(saver: DurableSaver, dice: random.Random, thread_id: str) -> None:
    what = dice.choices(["put", "prune", "copy", "delete", "read"], [70, 12, 6, 3, 9])[0]
    try:
        if what == "put":
            put_some(saver, dice, thread_id)
        elif what == "prune":
            saver.prune([thread_id], keep_last=dice.randint(1, 4))
        elif what == "copy":
            saver.copy_thread(thread_id, dice.choice([t for t in THREADS if t != thread_id]))
        elif what == "delete":
            saver.delete_thread(thread_id)
        else:
            for found in saver.list(config_for(thread_id), limit=10):
                check(found)
    except (ThreadDeletedError, ThreadExistsError, ParentPrunedError):
        pass


def put_some(saver: DurableSaver, dice: random.Random, thread_id: str) -> None:
    """Grow, trim or change what is there, or bring back what was there long ago."""
    found = saver.get_tuple(config_for(thread_id))
    numbers: list[int] = list(check(found)) if found is not None else []
    parent = found.config if found is not None else config_for(thread_id)
    for _ in range(dice.randint(1, 5)):
        how = dice.choice(["grow", "grow", "trim", "change", "old"])
        if how == "grow" or not numbers:
            numbers = [*numbers, *range(len(numbers), len(numbers) + dice.randint(1, 8))]
        elif how == "trim":
            numbers = numbers[dice.randint(0, len(numbers) // 2) :]
        elif how == "change":
            at = dice.randrange(len(numbers))
            numbers = [*numbers[:at], dice.randint(0, 30), *numbers[at + 1 :]]
        else:
            numbers = list(range(dice.randint(5, 60)))
        checkpoint = checkpoint_with({"list": value_of(numbers), "small": len(numbers)})
        metadata: Any = {"source": "loop", "numbers": numbers}
        parent = saver.put(parent, checkpoint, metadata, checkpoint["channel_versions"])


def check(found: Any) -> list[int]:
    numbers: list[int] = found.metadata["numbers"]
    assert found.checkpoint["channel_values"] == {"list": value_of(numbers), "small": len(numbers)}
    return numbers


def test_no_value_names_a_missing_segment(conninfo: str) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    workers = [
        context.Process(target=torture, args=(conninfo, seed, SECONDS, failures)) for seed in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    told = [failures.get(timeout=SECONDS + 60) for _ in workers]
    for worker in workers:
        worker.join(30)
    assert all(how == "done" for how, _ in told), told
    assert sum(done for _, done in told) > 20
    with DurableSaver.from_conn_string(conninfo, segment_cache_bytes=0) as cold:
        assert sum(1 for found in cold.list(None) if check(found) is not None) > 0
        for thread_id in THREADS:  # one more, so that there is something to prune
            put_some(cold, random.Random(0), thread_id)
            cold.prune([thread_id])
    with psycopg.connect(conninfo) as connection:
        for thread_id in THREADS:
            named = "SELECT unnest(segments) FROM langgraph_durable.channel_values WHERE thread_id = %s"
            entries = {hash_ for (hash_,) in connection.execute(named, (thread_id,))}
            stored = "SELECT hash, data FROM langgraph_durable.segments WHERE thread_id = %s"
            segments: dict[bytes, bytes] = dict(connection.execute(stored, (thread_id,)).fetchall())
            leaves = {leaf for entry in entries if is_index(entry) for leaf in hashes_in(segments[entry])}
            assert segments.keys() == entries | leaves
