"""A payment vendor: an HTTP server in a separate process, which counts the payments it really made.

POST /payments          {order, cents}, with an Idempotency-Key: make a payment
GET  /payments/ORDER    list the payments that were made: what `verify=` asks
PUT  /rules/ORDER       set how it treats the order's requests; see `VendorRules`
GET  /held/ORDER        answer as soon as a request is held
POST /release/ORDER     {commit}: continue held requests, or drop those that are not committed; stop holding
POST /expire/ORDER      forget the idempotency keys
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

_TIMEOUT = 60.0

Hold = Literal["before commit", "after commit"]


@dataclass(frozen=True)
class VendorRules:
    """How the vendor treats the requests of one order."""

    keys: Literal["honour", "ignore"] = "honour"
    """Whether a known key gets its saved answer, also if that is an error."""
    hold: Hold | None = None
    """Where requests wait until they are released."""
    errors: int = 0
    """How many payments are refused, starting with the first; a refusal is saved under its key."""


class PaymentRefusedError(RuntimeError):
    """The vendor answered that it did not make the payment."""


class _Books:
    """The state of the vendor."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rules: dict[str, VendorRules] = defaultdict(VendorRules)
        self.payments: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.refused: dict[str, int] = defaultdict(int)
        self.held: dict[str, int] = defaultdict(int)
        self.released: dict[str, bool] = {}

    def pay(self, order: str, cents: int, key: str) -> tuple[int, Any]:
        with self.changed:
            rules = self.rules[order]
            if rules.keys == "honour" and key and (order, key) in self.answers:
                return self.answers[order, key]
            if rules.hold == "before commit":
                self.answers[order, key] = 409, {"error": "in progress"}
                committed = self._wait_for_release(order)
                del self.answers[order, key]
                if not committed:
                    return 503, {"error": "dropped"}
            if self.refused[order] < rules.errors:
                self.refused[order] += 1
                answer: tuple[int, Any] = 402, {"error": "refused"}
            else:
                payment = {"payment": f"{order}/{len(self.payments[order])}", "cents": cents, "key": key}
                self.payments[order].append(payment)
                answer = 200, payment
            self.answers[order, key] = answer
            if rules.hold == "after commit":
                self._wait_for_release(order)
            return answer

    def _wait_for_release(self, order: str) -> bool:
        self.held[order] += 1
        self.changed.notify_all()
        self.changed.wait_for(lambda: order in self.released, _TIMEOUT)
        return self.released.get(order, False)

    def handle(self, action: str, order: str, body: dict[str, Any], key: str) -> tuple[int, Any]:
        if action == "POST /payments":
            return self.pay(body["order"], body["cents"], key)
        with self.changed:
            if action == "GET /payments":
                return 200, self.payments[order]
            if action == "PUT /rules":
                self.rules[order] = VendorRules(**body)
                self.released.pop(order, None)
            elif action == "GET /held":
                return (200 if self.changed.wait_for(lambda: self.held[order] > 0, _TIMEOUT) else 504), None
            elif action == "POST /release":
                self.released[order] = body["commit"]
                self.rules[order] = replace(self.rules[order], hold=None)
                self.changed.notify_all()
            elif action == "POST /expire":
                self.answers = {known: answer for known, answer in self.answers.items() if known[0] != order}
            else:
                return 404, {"error": action}
        return 200, None


def _serve() -> None:
    """Serve as the vendor until the parent process ends."""
    books = _Books()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            _, resource, *rest = self.path.split("/", 2)
            status, answer = books.handle(
                f"{self.command} /{resource}", "".join(rest), body, self.headers.get("Idempotency-Key", "")
            )
            data = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                self.close_connection = True  # the client was killed

        do_GET = do_POST = do_PUT = _answer  # noqa: N815 (http.server's names)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore clients that were killed while they sent."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()  # until the other end is closed


@dataclass(frozen=True)
class FakeVendor:
    """A client of the vendor."""

    port: int

    def _call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT)
        try:
            connection.request(method, path, json.dumps(body or {}), {"Idempotency-Key": key})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def pay(self, order: str, cents: int, key: str) -> dict[str, Any]:
        """Make a payment.

        Raises:
            PaymentRefusedError: It was definitely not made.
            RuntimeError: Any other answer: it is unknown whether it was made.
        """
        status, answer = self._call("POST", "/payments", {"order": order, "cents": cents}, key)
        if status == 402:
            raise PaymentRefusedError(answer["error"])
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        return dict(answer)

    def payments(self, order: str) -> list[dict[str, Any]]:
        """Return the payments that were made for an order."""
        return list(self._call("GET", f"/payments/{order}")[1])

    def set_rules(self, order: str, rules: VendorRules) -> None:
        """Set how requests of an order are treated from now on."""
        self._call("PUT", f"/rules/{order}", asdict(rules))

    def wait_held(self, order: str) -> None:
        """Wait until a request of an order is held.

        Raises:
            TimeoutError: None came within 60 seconds.
        """
        status, _ = self._call("GET", f"/held/{order}")
        if status != 200:
            raise TimeoutError(f"no request of order {order!r} was held")

    def release(self, order: str, *, commit: bool = True) -> None:
        """Continue an order's held requests, or drop those that are not committed, and stop holding."""
        self._call("POST", f"/release/{order}", {"commit": commit})

    def expire(self, order: str) -> None:
        """Forget an order's idempotency keys, as vendors do after a day."""
        self._call("POST", f"/expire/{order}")


@contextmanager
def fake_vendor() -> Iterator[FakeVendor]:
    """Run a vendor in a separate process."""
    # This file alone, which imports nothing of the package, so that it starts at once.
    process = subprocess.Popen(  # noqa: S603 (a fixed command)
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            port = process.stdout.readline() if process.stdout is not None else ""
            if not port:
                raise RuntimeError("the fake vendor did not start; its standard error says why")
            yield FakeVendor(int(port))
        finally:
            process.kill()


if __name__ == "__main__":
    _serve()
