"""The law of pruning: whatever goes, every checkpoint that survives is the same before and after.

Random graphs with delta channels, subgraphs and interrupts, random histories, random prunes; real Postgres.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import CheckpointCorrupted, DurableSaver, _pruning
from langgraph_durable import _retention_statements as sql
from langgraph_durable._segments import hashes_in, is_index
from langgraph_durable._statements import Statement
from tests.conftest import Databases
from tests.property.test_segments import make_tiny
from tests.property.threads import (
    STEPS,
    Action,
    Clear,
    Copy,
    Durability,
    Elsewhere,
    Fork,
    Key,
    Loop,
    Resume,
    Run,
    Seen,
    Shape,
    Thread,
    Update,
    deltas_of,
    graph_of,
)

EXAMPLES = int(os.environ.get("DURABLE_EXAMPLES", "500"))
SCHEMA = "langgraph_durable"
NEEDS = _pruning._needs


class Prune(NamedTuple):
    keep_last: int | None


class DeleteRuns(NamedTuple):
    """Delete the checkpoints of some runs: bit by bit, the first run is the lowest."""

    which: int


class Continue(NamedTuple):
    """Go on with a copy."""


class Compact(NamedTuple):
    """Fold the delta channels, and prune."""


Operation: TypeAlias = Prune | DeleteRuns | Continue | Compact


class Round(NamedTuple):
    actions: list[Action]
    operations: list[Operation]
    then: Action


# --- scenarios ---

FREQUENCIES = (1, 2, 3, 4, 5, 50, 1000)
SHAPES = [Shape(*(FREQUENCIES[(i * k + i // 7) % 7] for k in (1, 2, 3, 5))) for i in range(28)]

durabilities: st.SearchStrategy[Durability] = st.sampled_from(["sync", "async", "exit"])
plans = st.lists(st.sampled_from(STEPS), min_size=1, max_size=4).map(tuple)
indices = st.integers(0, 7)
runs = st.builds(Run, plans, durabilities, st.booleans())
resumes = st.builds(Resume, durabilities)
forks = st.builds(Fork, indices, durabilities)
actions: st.SearchStrategy[Action] = st.one_of(
    runs,
    runs,
    resumes,
    forks,
    st.builds(Update, st.none() | indices, st.sampled_from(["one", "join"]), st.booleans()),
    st.builds(Copy, indices),
    st.builds(Clear),
    st.builds(Elsewhere, durabilities),
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Prune, st.none() | st.integers(1, 4)),
    st.builds(DeleteRuns, st.integers(1, 63)),
    st.builds(Continue),
    st.builds(Compact),
)
rounds = st.builds(
    Round,
    st.lists(actions, max_size=4),
    st.lists(operations, min_size=1, max_size=2),
    runs | resumes | forks,
)
# Async nodes neither ask nor call subgraphs before Python 3.11: LangGraph gives them no context.
asynchronously = st.sampled_from([False, False, False, sys.version_info >= (3, 11)])
scenarios = st.tuples(st.sampled_from(SHAPES), asynchronously, runs, st.lists(rounds, min_size=1, max_size=2))


# --- the law ---


class World(NamedTuple):
    saver: DurableSaver
    connection: psycopg.Connection[Any]
    loop: Loop


@pytest.fixture(scope="module")
def world(databases: Databases, template: str) -> Iterator[World]:
    """One database for all examples, each with threads of its own."""
    conninfo = databases.conninfo(databases.create(template))
    loop = Loop()
    with (
        pytest.MonkeyPatch.context() as patch,
        DurableSaver.from_conn_string(conninfo) as saver,
        psycopg.connect(conninfo, autocommit=True) as connection,
    ):
        make_tiny(patch)  # so that the lists of these graphs are long ones
        yield World(saver, connection, loop)
        loop.run(saver.aclose())
    loop.close()


def obey(world: World, shape: Shape, asynchronous: bool, first: Run, rounds: list[Round]) -> None:
    thread = Thread(graph_of(shape, world.saver), world.saver, world.loop if asynchronous else None)
    thread.act(first)
    for actions, operations, then in rounds:
        for action in actions:
            thread.act(action)
        untouched = thread.copied()
        before = thread.photograph()
        assert untouched.photograph().keys() == before.keys()
        check_histories(thread, before)
        for operation in operations:
            thread, before = operate(world, thread, operation, before)
        is_deleted = any(isinstance(operation, DeleteRuns) for operation in operations)
        if latest(before) == latest(untouched.photograph()) and not (is_deleted and isinstance(then, Fork)):
            for continued in (thread, untouched):
                continued.act(then, roots_of(before))
            assert values_of(thread) == values_of(untouched)


def latest(seen: dict[Key, Seen]) -> dict[str, str]:
    """Return what a run goes on from: the newest checkpoint of the graph, and of each subgraph that keeps its state."""
    found: dict[str, str] = {}
    for ns, id_ in seen:
        if ":" not in ns:
            found.setdefault(ns, id_)
    return found


def roots_of(seen: dict[Key, Seen]) -> list[str]:
    return [id_ for ns, id_ in seen if ns == ""]


def values_of(thread: Thread) -> Any:
    state = thread.graph.get_state(thread.config())
    return state.values, state.next


def operate(
    world: World, thread: Thread, operation: Operation, before: dict[Key, Seen]
) -> tuple[Thread, dict[Key, Seen]]:
    """Do it, and check that exactly the survivors that it ought to have are there, as they were."""
    expected = set(before)
    if isinstance(operation, Prune):
        expected = newest(before, operation.keep_last or 1)
        thread.do("prune", [thread.id], keep_last=operation.keep_last)
    elif isinstance(operation, DeleteRuns):
        doomed = {run for i, run in enumerate(thread.runs) if operation.which >> i & 1}
        expected = {key for key, seen in before.items() if seen.metadata.get("run_id") not in doomed}
        if not any(ns == "" for ns, _ in expected):
            return thread, before
        thread.do("delete_for_runs", sorted(doomed))
    elif isinstance(operation, Continue):
        thread = thread.copied()
    else:
        expected = newest(before, 1)
        thread.do("compact", thread.graph, [thread.id])
    after = thread.photograph()
    assert set(after) == expected
    assert list(after) == [key for key in before if key in expected], "in their order"
    for key, seen in after.items():
        then = before[key]
        assert seen.state == then.state, key
        assert seen.writes == then.writes, key
        if not isinstance(operation, DeleteRuns):
            assert seen.subgraphs == then.subgraphs, key
        assert seen.parent in (then.parent, None), key
        assert seen.metadata == then.metadata, key
        if isinstance(operation, Compact):
            assert seen.replayed == set(), key
            assert unfolded(seen) == unfolded(then), key
        else:
            assert seen.checkpoint == then.checkpoint, key
    if not isinstance(operation, Continue):
        thread.whole = False
        check_rows(world, thread, after)
        check_histories(thread, after)
    return thread, after


def unfolded(seen: Seen) -> dict[str, Any]:
    """Return a checkpoint without the values of its delta channels, which a compaction may add."""
    values = seen.checkpoint["channel_values"]
    plain = {channel: value for channel, value in values.items() if not isinstance(value, _DeltaSnapshot)}
    return {**seen.checkpoint, "channel_values": plain}


def newest(seen: dict[Key, Seen], count: int) -> set[Key]:
    """What a prune leaves of checkpoints, newest first."""
    by_ns: dict[str, list[Key]] = {}
    for key in seen:
        by_ns.setdefault(key[0], []).append(key)
    order = list(seen)
    roots = by_ns[""][:count]
    left = set(roots)
    for ns, keys in by_ns.items():
        if ":" in ns:
            root = ("", seen[keys[0]].metadata["parents"][""])
            if root in seen and root not in left:
                continue
        left |= set(keys[:count])
        if ns and ":" not in ns:
            for root in roots:  # a replay from there starts from the latest state before
                start = replay_start(seen, root)
                earlier = [key for key in keys if is_before(order, key, start)]
                left |= set(earlier[:1])
    return left


def replay_start(seen: dict[Key, Seen], root: Key) -> Key:
    """Where LangGraph lets subgraphs start from in a replay: before this."""
    parent = seen[root].parent
    return ("", parent) if parent and seen[root].metadata["source"] in ("update", "fork") else root


def is_before(order: list[Key], key: Key, start: Key) -> bool:
    """Tell whether one is older, by their place in a list, newest first, or by their ids if one was pruned."""
    return order.index(key) > order.index(start) if start in order else key[1] < start[1]


def check_histories(thread: Thread, seen: dict[Key, Seen]) -> None:
    """Check that what survives has the history that LangGraph's own walk finds, whatever was removed."""
    for ns, id_ in seen:
        config, channels = thread.config(id_, ns), deltas_of(ns)
        history = thread.do("get_delta_channel_history", config=config, channels=channels)
        saver = thread.saver
        assert history == BaseCheckpointSaver.get_delta_channel_history(
            saver, config=config, channels=channels
        )


# --- rows: all that survivors need are there, and no others ---


def check_rows(world: World, thread: Thread, seen: dict[Key, Seen]) -> None:
    def fetch(columns: str, table: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {SCHEMA}.{table} WHERE thread_id = %s"
        return world.connection.execute(query, (thread.id,)).fetchall()

    columns = "checkpoint_ns, checkpoint_id, parent_checkpoint_id, value_channels, value_versions"
    stored = {(ns, id_): rest for ns, id_, *rest in fetch(columns, "checkpoints")}
    ancestors = {(ns, id_): rest for ns, id_, *rest in fetch(columns, "ancestors")}
    assert stored.keys() == seen.keys()
    assert not stored.keys() & ancestors.keys()
    nodes: dict[Key, Any] = stored | ancestors

    replayed: set[tuple[str, str, str]] = set()
    for (ns, _), checkpoint in seen.items():
        parent = checkpoint.parent
        assert parent is None or (ns, parent) in nodes, "a parent that is named is there to lead on"
        for channel in checkpoint.replayed:
            cursor = parent
            while cursor is not None and (ns, cursor) in nodes:
                replayed.add((ns, cursor, channel))
                cursor, channels, _ = nodes[ns, cursor]
                if channel in channels:
                    break
    needed = {(ns, id_) for ns, id_, _ in replayed}
    if any(ns and ":" not in ns for ns, _ in stored):
        starts = {replay_start(seen, root) for root in seen if root[0] == ""}
        needed |= starts & ancestors.keys()
    assert ancestors.keys() == needed - stored.keys()

    writes = set(fetch("checkpoint_ns, checkpoint_id, channel", "writes"))
    assert {w for w in writes if w[:2] not in stored} <= replayed
    named = {
        (ns, channel, version)
        for (ns, _), (_, channels, versions) in nodes.items()
        for channel, version in zip(channels, versions, strict=True)
        if version is not None
    }
    assert set(fetch("checkpoint_ns, channel, version", "channel_values")) == named

    segments = dict(fetch("hash, data", "segments"))
    entries = {entry for (its,) in fetch("segments", "channel_values") for entry in its or ()}
    leaves = {leaf for entry in entries if is_index(entry) for leaf in hashes_in(segments[entry])}
    assert segments.keys() == entries | leaves


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(scenario=scenarios)
@example(  # a replay from a fork starts subgraphs from before the fork's parent, which is pruned
    scenario=(
        Shape(1, 1, 1, 1),
        False,
        Run(("keep",), "sync", False),
        [Round([Run(("one",), "sync", False), Copy(4)], [Compact()], Fork(0, "sync"))],
    )
)
@example(  # a run that is deleted takes all of a subgraph that kept its state, and what a fork needed for it
    scenario=(
        Shape(1, 1, 1, 1),
        False,
        Run(("one",), "sync", False),
        [
            Round([Resume("sync")], [Continue()], Run(("keep?",), "sync", False)),
            Round([Update(None, "one", False)], [DeleteRuns(4)], Resume("sync")),
        ],
    )
)
@example(  # a run that is deleted takes the newest state of a subgraph, and the graph's latest checkpoint is another's
    scenario=(
        Shape(1, 1, 1, 1),
        False,
        Run(("keep",), "sync", False),
        [
            Round(
                [Resume("sync"), Resume("sync"), Run(("keep",), "sync", False)],
                [Continue()],
                Run(("one",), "sync", False),
            ),
            Round([], [Prune(None), DeleteRuns(8)], Run(("keep",), "sync", False)),
        ],
    )
)
@example(  # an update of a subgraph's parent, then a run deleted
    scenario=(
        Shape(1, 1, 1, 1),
        False,
        Run(("one",), "sync", False),
        [
            Round(
                [Run(("keep",), "sync", False), Update(None, "one", False)],
                [Compact(), DeleteRuns(2)],
                Resume("sync"),
            )
        ],
    )
)
@example(  # a run that goes on from an ancestor: what is empty there is no delta channel
    scenario=(
        Shape(1, 1, 1, 1),
        False,
        Run(("one",), "sync", False),
        [
            Round([Run(("one",), "sync", True)], [Prune(None)], Resume("exit")),
            Round([Copy(3)], [Compact()], Resume("async")),
        ],
    )
)
def test_what_survives_is_what_it_was(world: World, scenario: Any) -> None:
    obey(world, *scenario)


def test_the_law_catches_a_prune_that_ignores_delta_channels(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pruning, "_needs", lambda by_key, survivors: ({}, {}))
    assert_caught(world)


def test_the_law_catches_a_prune_that_loses_seeds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_seeds(by_key: Any, survivors: Any) -> Any:
        needed, seeds = NEEDS(by_key, survivors)
        return needed, dict.fromkeys(seeds.keys() | needed.keys(), frozenset())

    monkeypatch.setattr(_pruning, "_needs", without_seeds)
    assert_caught(world)


def test_the_law_catches_a_prune_that_loses_one_channel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_rare(by_key: Any, survivors: Any) -> Any:
        needed, seeds = NEEDS(by_key, survivors)
        return {key: channels - {"rare"} for key, channels in needed.items()}, seeds

    monkeypatch.setattr(_pruning, "_needs", without_rare)
    assert_caught(world)


def test_the_law_catches_a_prune_that_leaves_segments(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Statement("SELECT 0, 0 WHERE %(thread)s::text IS NOT NULL")
    monkeypatch.setattr(sql, "DELETE_SEGMENTS", nothing)
    assert_caught(world)


def test_the_law_catches_a_prune_that_forgets_indexes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    text: Any = sql.DELETE_SEGMENTS.text.replace("IN ('\\x01', '\\x03')", "IS NULL")
    assert text != sql.DELETE_SEGMENTS.text
    monkeypatch.setattr(sql, "DELETE_SEGMENTS", Statement(text))
    assert_caught(world)


def assert_caught(world: World) -> None:
    """Run the law on a few dozen examples, and assert that it is broken."""

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenario=scenarios)
    def law(scenario: Any) -> None:
        obey(world, *scenario)

    with pytest.raises((AssertionError, CheckpointCorrupted)):
        law()
