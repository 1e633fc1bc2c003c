"""A socket between a saver and its server: counts round trips, loses answers, feigns outages."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

_READY = b"Z\0\0\0\5"
"""ReadyForQuery, which ends every answer; the transaction's state follows, I for none."""


class Proxy:
    """Listens for as long as its `with` block lasts.

    Attributes:
        round_trips: How often a client sent something and the server answered.
        connections: How many connections were made.
        refused: How many were refused while it was down.
    """

    def __init__(self, conninfo: str, listener: socket.socket | None = None) -> None:
        """Make one that listens on a TCP socket, or else on a Unix socket of its own."""
        self.lead_to(conninfo)
        self._directory = Path(tempfile.mkdtemp(prefix="proxy-"))
        if listener is not None:
            self._listener = listener
            host, port = listener.getsockname()
        else:
            path = self._directory / ".s.PGSQL.5432"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            path.chmod(0o666)
            self._listener.listen(64)
            host, port = str(self._directory), 5432
        self.conninfo = make_conninfo(conninfo, host=host, port=port)
        self.round_trips = 0
        self.connections = 0
        self.refused = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lost: Callable[[], Any] | None = None
        self._down = False
        self._refusal: str | None = None

    def __enter__(self) -> Proxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        shutil.rmtree(self._directory)

    def lose_next_answer(self, then: Callable[[], Any] = lambda: None) -> None:
        """Receive the next answer in full, call `then`, and cut its connection instead of passing it on."""
        self._lost = then

    def lead_to(self, conninfo: str) -> None:
        """Lead new connections to another server."""
        with psycopg.connect(conninfo) as connection:
            self._upstream = (connection.info.host, connection.info.port)

    def peers(self) -> list[int]:
        """The ports of the clients that are connected over TCP."""
        with self._lock:
            ends = [end for end in self._open if end.family == socket.AF_INET]
            return [end.getpeername()[1] for end in ends]

    def cut(self) -> None:
        """Cut every connection."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def refuse_options(self, words: str) -> None:
        """Refuse connections that ask for startup options, in some pooler's words."""
        self._refusal = words

    def go_down(self) -> None:
        """Cut every connection, and every new one at once."""
        self._down = True
        self.cut()

    def come_up(self) -> None:
        self._down = False

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                client.close()
                self.refused += 1
                continue
            self.connections += 1
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        server = self._connect()
        with client, server, selectors.DefaultSelector() as selector:
            with self._lock:
                self._open |= {client, server}
            try:
                selector.register(client, selectors.EVENT_READ)
                selector.register(server, selectors.EVENT_READ)
                self._pass_on(client, server, selector)
            except OSError:
                pass  # one end was cut; the other one is closed with it
            finally:
                with self._lock:
                    self._open -= {client, server}

    def _connect(self) -> socket.socket:
        host, port = self._upstream
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pass_on(
        self, client: socket.socket, server: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        asked = losing = False
        answer = b""
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if not data:
                    return
                if key.fileobj is client:
                    if self._refusal is not None and b"\0options\0" in data:
                        error = f"SFATAL\0VFATAL\0C08P01\0M{self._refusal}\0\0".encode()
                        client.sendall(b"E" + struct.pack("!I", len(error) + 4) + error)
                        return
                    asked, losing, answer = True, self._lost is not None, b""
                    server.sendall(data)
                    continue
                if asked:
                    asked = False
                    with self._lock:
                        self.round_trips += 1
                if not losing:
                    client.sendall(data)
                    continue
                answer += data
                if self._lost is None:  # another connection's answer was the next one
                    client.sendall(answer)
                    losing, answer = False, b""
                elif answer[-6:-1] == _READY:
                    then, self._lost = self._lost, None
                    then()
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
