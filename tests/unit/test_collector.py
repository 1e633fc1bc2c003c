"""The garbage collector runs again after every pause."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from langgraph_durable._checkpoints.gc_pause import gc_paused

FORK = """
import gc, os, threading
from langgraph_durable._checkpoints.gc_pause import gc_paused

inside, leave = threading.Event(), threading.Event()

def work():
    with gc_paused():
        inside.set()
        leave.wait()

thread = threading.Thread(target=work)
thread.start()
inside.wait()
assert not gc.isenabled()
child = os.fork()
if child == 0:
    os._exit(0 if gc.isenabled() else 1)
_, status = os.waitpid(child, 0)
leave.set()
thread.join()
assert gc.isenabled()
assert status == 0, "the collector stays disabled in the child"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_collector_runs_in_a_child_forked_during_a_pause() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_collector_runs_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), gc_paused():
        assert not gc.isenabled()
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_runs_after_concurrent_pauses() -> None:
    def pause() -> None:
        for _ in range(2000):
            with gc_paused():
                pass

    threads = [threading.Thread(target=pause) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
