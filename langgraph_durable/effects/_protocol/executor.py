"""Carries out calls as effects: identifies the call, runs it, and counts replays."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_durable._context import SaverContext
from langgraph_durable._postgres.database import Database, run_sync
from langgraph_durable._validation import require_text
from langgraph_durable.effects._identity.hashing import hash_arguments, named_key
from langgraph_durable.effects._identity.location import Place, ToolCall, find_place
from langgraph_durable.effects._identity.parameters import Arguments
from langgraph_durable.effects._protocol.attempt import Attempt, EffectCall, running
from langgraph_durable.effects._protocol.claim import run_effect
from langgraph_durable.effects._protocol.keys import Identity, identify
from langgraph_durable.effects._protocol.leases import Lease, LeaseKeeper, on_loop
from langgraph_durable.effects._protocol.results import give
from langgraph_durable.effects._storage import store as ops
from langgraph_durable.effects._storage.encoding import request_of
from langgraph_durable.effects._storage.rows import EffectRequest, EffectRow
from langgraph_durable.effects.policy import EffectPolicy
from langgraph_durable.errors import EffectError, InvalidConfigError


class HasSerde(Protocol):
    """A saver, whose serializer may be reassigned."""

    serde: SerializerProtocol


_decorated: dict[str, weakref.WeakSet[Any]] = {}
"""Effect's name -> the functions decorated so, as long as they exist."""


def mark_as_effect(function: Any, name: str, policy: EffectPolicy) -> None:
    """Note on a function that its body is an effect already, and its policy."""
    function.__effect__ = policy
    _decorated.setdefault(name, weakref.WeakSet()).add(function)


def is_effect(function: Any) -> bool:
    """Return whether a function's body is an effect already."""
    return policy_of(function) is not None


def policy_of(function: Any) -> EffectPolicy | None:
    """Return the policy of a function whose body is an effect; None if it is not."""
    policy = getattr(function, "__effect__", None)
    return policy if isinstance(policy, EffectPolicy) else None


def policy_named(name: str) -> EffectPolicy | None:
    """Return the policy of the decorated functions of a name; None if there are none, or they differ."""
    policies = [policy_of(function) for function in list(_decorated.get(name, ()))]
    return policies[0] if policies and all(policy == policies[0] for policy in policies) else None


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a function or tool whose body is an effect.

    Attributes:
        key: Identifies the call instead of the policy's scope, if given.
    """

    name: str
    policy: EffectPolicy
    arguments: Arguments
    place: Place | None
    tool_call: ToolCall | None
    key: str | None = None


class ReplayCounter:
    """Counts replays in this process: in total, and for the runs that replayed last. Safe across threads."""

    _max_runs = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._by_run: OrderedDict[str, int] = OrderedDict()

    def add(self, run_id: str | None) -> None:
        """Count a replay; `run_id` is None outside a run."""
        run_id = run_id or ""
        with self._lock:
            self._total += 1
            self._by_run[run_id] = self._by_run.get(run_id, 0) + 1
            self._by_run.move_to_end(run_id)
            if len(self._by_run) > self._max_runs:
                self._by_run.popitem(last=False)

    def count(self, run_id: str | None) -> int:
        """Return the replays of one run, or the total for None."""
        with self._lock:
            return self._total if run_id is None else self._by_run.get(run_id, 0)


class EffectExecutor:
    """What an effect log and its tool wrappers carry effects out with."""

    def __init__(self, context: SaverContext, saver: HasSerde) -> None:
        self.context = context
        self.replays = ReplayCounter()
        self._saver = saver
        self._leases = LeaseKeeper(self._renew)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def serde(self) -> SerializerProtocol:
        """The saver's serializer, as it is now."""
        return self._saver.serde

    def _renew(self, leases: list[Lease]) -> None:
        if self.context.connections is not None:
            run_sync(ops.renew_leases(self.context.db, leases))
        elif self._loop is not None:
            on_loop(self._loop, lambda held: ops.renew_leases(self.context.adb, held))(leases)

    async def run(self, call: EffectCall, body: Callable[[], Awaitable[Any]]) -> Attempt:
        """Run a body at most once, or return what is recorded."""
        attempt = await run_effect(call, body)
        if attempt.replayed:
            self._count_replay(call.place)
        return attempt

    async def run_invocation(
        self, invocation: Invocation, body: Callable[[], Awaitable[Any]], *, asynchronous: bool
    ) -> tuple[Any, Attempt]:
        """Run a body at most once for a call.

        Returns:
            The body's value, or the recorded one, fit for this call; and the attempt it comes from.

        Raises:
            EffectError: The call cannot be identified, or can be neither carried out nor replayed.
        """
        db: Database = self.context.adb if asynchronous else self.context.db
        attempt = await self.run(self._invoked_call(db, invocation), body)
        return self.value(attempt, invocation.tool_call), attempt

    def value(self, attempt: Attempt, tool_call: ToolCall | None = None) -> Any:
        """Return an attempt's value, fit for the call that asks now; raise a Command that the body raised."""
        return give(attempt, tool_call) if attempt.replayed else attempt.value

    def _invoked_call(self, db: Database, invocation: Invocation) -> EffectCall:
        name, policy, place = invocation.name, invocation.policy, invocation.place
        tool_call = invocation.tool_call
        input_hash = hash_arguments(name, invocation.arguments.hashed)
        if invocation.key is not None:
            scope, identity = "key", Identity(named_key(name, invocation.key))
        else:
            scope, identity = policy.scope, identify(policy.scope, name, input_hash, place, tool_call)
        request = request_of(
            self.serde,
            name,
            scope,
            identity.key,
            invocation.arguments.recorded,
            place,
            input_hash=input_hash,
            message_id=identity.message_id,
            tool_call_id=identity.tool_call_id,
            outer_id=identity.outer_id,
        )
        return EffectCall(
            db,
            self.context,
            self.serde,
            self._lease_keeper(),
            request,
            policy,
            place,
            named=scope in ("key", "thread", "global"),
            is_alone=tool_call is None or tool_call.is_alone,
            counted_in=identity.calls if identity.runs_again else None,
        )

    def recovery_call(
        self, db: Database, row: EffectRow, policy: EffectPolicy, place: Place | None, *, is_alone: bool
    ) -> EffectCall:
        """Return a call by which an effect is recovered in a place that did not request it."""
        request = EffectRequest(
            row.key,
            row.tool,
            row.scope,
            row.input_hash,
            lambda: None,
            thread_id=row.thread_id,
            checkpoint_ns=place.checkpoint_ns if place is not None else None,
            checkpoint_id=place.checkpoint_id if place is not None else None,
            task_id=place.task_id if place is not None else None,
            run_id=place.run_id if place is not None else None,
        )
        leases = self._lease_keeper()
        return EffectCall(
            db, self.context, self.serde, leases, request, policy, place, named=True, is_alone=is_alone
        )

    def named_call(self, db: Database, name: str, key: str, args: Any, policy: EffectPolicy) -> EffectCall:
        """Return the call of an effect that its caller identifies by a key.

        Raises:
            InvalidConfigError: The name is empty or cannot be stored.
            EffectError: The key is empty, or the arguments are not plain data.
        """
        if not require_text(name, "name"):
            raise InvalidConfigError("name= is empty. Say what is done, such as 'charge'")
        if not isinstance(key, str) or not key:
            raise EffectError(
                f"key= must be a non-empty str, unique among effects named {name!r}, got {key!r}"
            )
        place = find_place()
        try:
            input_hash = hash_arguments(name, args)
        except EffectError as exc:
            raise EffectError(
                f"args= of {name!r} must be plain data, because they are hashed: {exc.__cause__}. The key identifies "
                "the effect already, so leave them out of args="
            ) from exc.__cause__
        request = request_of(
            self.serde, name, "key", named_key(name, key), args, place, input_hash=input_hash
        )
        leases = self._lease_keeper()
        return EffectCall(db, self.context, self.serde, leases, request, policy, place, named=True)

    @contextmanager
    def holding(self, call: EffectCall, attempt: Attempt) -> Iterator[None]:
        """Make an attempt the current one and renew its lease; count it if it is a replay."""
        if attempt.replayed:
            self._count_replay(call.place)
        row = attempt.row
        lease = (
            nullcontext()
            if attempt.replayed
            else self._leases.keep(row.effect_id, row.fence, call.policy.lease, call.policy.timeout)
        )
        with lease, running(attempt):
            yield

    def _lease_keeper(self) -> LeaseKeeper:
        if self.context.connections is None:  # renewals need the event loop of the only connections
            self._loop = asyncio.get_running_loop()
        return self._leases

    def _count_replay(self, place: Place | None) -> None:
        self.replays.add(place.run_id if place is not None else None)
