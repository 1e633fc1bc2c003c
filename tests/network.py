"""A network between a test and its proxy that loses packets, where the test may make one."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CLONE_NEWNET = 0x40000000


class Network:
    """A network namespace, reached over a pair of virtual interfaces.

    Attributes:
        listener: A TCP socket in it.
    """

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address
        self._dropped: set[int] = set()
        self.listener: socket.socket
        # The socket belongs to the namespace of the thread that makes it.
        thread = threading.Thread(target=self._listen)
        thread.start()
        thread.join()

    def _listen(self) -> None:
        descriptor = os.open(f"/run/netns/{self._name}", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            self.listener = socket.create_server((self._address, 0))
        finally:
            os.close(descriptor)

    def drop(self, port: int) -> None:
        """From now on, lose every packet to a port, acknowledgements too; those to other ports arrive."""
        self._dropped.add(port)
        self._rule("add", port)

    def restore(self) -> None:
        """Lose no more packets; or what still waits for one would wait long after its test."""
        while self._dropped:
            self._rule("del", self._dropped.pop())

    def _rule(self, verb: str, port: int) -> None:
        _ip("-n", self._name, "rule", verb, "ipproto", "tcp", "dport", str(port), "blackhole")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def network() -> Iterator[Network]:
    """Make a network of the test's own, or skip the test where it may not."""
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("packets are lost in a network namespace: that needs root, and iproute2")
    pid = os.getpid()
    name, ours, theirs = f"durable{pid}", f"dua{pid}", f"dub{pid}"
    subnet = f"198.18.{pid >> 6 & 255}.{{}}"
    base = (pid & 63) * 4
    try:
        _ip("netns", "add", name)
        try:
            _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
            _ip("addr", "add", f"{subnet.format(base + 1)}/30", "dev", ours)
            _ip("link", "set", ours, "up")
            _ip("-n", name, "addr", "add", f"{subnet.format(base + 2)}/30", "dev", theirs)
            _ip("-n", name, "link", "set", theirs, "up")
            made = Network(name, subnet.format(base + 2))
        except BaseException:
            _ip("netns", "del", name)
            raise
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no network namespace can be made here: {exc.stderr.strip()}")
    try:
        yield made
    finally:
        made.listener.close()
        _ip(
            "link", "del", ours
        )  # and the other end; a namespace lives on until its last socket has timed out
        _ip("netns", "del", name)
