"""The planner of removals against brute force: forests of checkpoints, no database."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.types import TASKS

from langgraph_durable._retention.plan import Key, Node, Plan, choose_newest, plan_removal

EXAMPLES = 4 * int(os.environ.get("DURABLE_EXAMPLES", "500"))
CHANNELS = ("a", "b", "c")
NAMESPACES = ("", "kept", "call:1", "call:2")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

Value = tuple[str, str, str]
"""A row of channel_values: namespace, channel, version."""


@dataclass
class Rows:
    """A thread as it is stored, for a planner: what a plan is carried out on."""

    nodes: dict[Key, Node]
    writes: set[tuple[str, str, str]] = field(default_factory=set)
    values: set[Value] = field(default_factory=set)

    def carry_out(self, plan: Plan) -> Rows:
        """Do what the statements do."""
        nodes = dict(self.nodes)
        for key in plan.checkpoints:
            node = nodes.pop(key)
            if key in plan.new_ancestors:
                seeds = {c: v for c, v in node.values.items() if (*key, c) in plan.seeds}
                nodes[key] = Node(*key, node.parent_checkpoint_id, seeds, None)
        for key in plan.old_ancestors:
            assert nodes.pop(key).ulid is None
        for key in plan.orphans:
            nodes[key] = replace(nodes[key], parent_checkpoint_id=None)
        writes = {w for w in self.writes if w[:2] not in plan.stripped or w in plan.kept_writes}
        return Rows(nodes, writes, self.values - plan.values)

    def history(self, node: Node, channel: str) -> list[Any]:
        """Return what a channel is replayed from at a checkpoint."""
        found: list[Any] = []
        cursor = node.parent
        while cursor is not None and (ancestor := self.nodes.get(cursor)) is not None:
            if (*cursor, channel) in self.writes:
                found.append(cursor)
            if channel in ancestor.values:
                version = ancestor.values[channel]
                assert version is None or (cursor[0], channel, version) in self.values
                return [*found, ("seed", cursor, version)]
            cursor = ancestor.parent
        return found

    def sends(self, node: Node) -> bool:
        return node.format < 4 and node.parent is not None and (*node.parent, TASKS) in self.writes

    def seen(self, node: Node) -> Any:
        """Return all that is to be seen of a checkpoint."""
        return (
            {channel: self.history(node, channel) for channel in node.delta_channels},
            {c: v for c, v in node.values.items() if v is None or (node.checkpoint_ns, c, v) in self.values},
            {w for w in self.writes if w[:2] == node.key},
            self.sends(node),
        )

    def checkpoints(self) -> dict[Key, Node]:
        return {key: node for key, node in self.nodes.items() if node.ulid is not None}


class Dice:
    """Choices read from one number, so that Hypothesis has few to draw; 0 is the plainest of all."""

    def __init__(self, number: int) -> None:
        self._left = number

    def below(self, count: int) -> int:
        self._left, chosen = divmod(self._left, count)
        return chosen

    def some(self, of: Sequence[str]) -> list[str]:
        return [item for item in of if self.below(2)]


def grow(numbers: Sequence[int]) -> tuple[Rows, list[set[Key]]]:
    """Make a thread of a number for each checkpoint, and what survives three removals in turn."""
    rows = Rows({})
    turns: list[set[Key]] = [set(), set(), set()]
    for count, number in enumerate(numbers):
        dice = Dice(number)
        key = (ns, id_) = (NAMESPACES[dice.below(5) % 4], f"id {count}")
        for turn in turns[: 3 - dice.below(4)]:
            turn.add(key)
        before = [node.checkpoint_id for node in rows.nodes.values() if node.checkpoint_ns == ns]
        # Chains mostly, some forks, and parents that are not there.
        parents = [*before[-1:] * 6, *before, None, "unknown"]
        chosen = dice.some(CHANNELS)[:2] if dice.below(3) == 2 else []
        versions = [None, f"version {count}", "shared"]
        values = {channel: versions[dice.below(3)] for channel in chosen}
        rows.nodes[key] = Node(
            ns,
            id_,
            parents[dice.below(len(parents))],
            values,
            uuid.UUID(int=dice.below(50) << 16 | count),
            START + timedelta(hours=dice.below(10)),
            f"id {dice.below(count)}" if ns and count else None,
            None,
            3 if dice.below(4) == 3 else 4,
            tuple(dice.some([c for c in CHANNELS if c not in values])),
        )
        rows.values |= {(ns, channel, version) for channel, version in values.items() if version}
        rows.writes |= {(ns, id_, channel) for channel in dice.some((*CHANNELS, TASKS))}
    return rows, turns


# Bytes, and not integers, of which Hypothesis draws mostly small ones.
numbers = st.binary(min_size=8, max_size=8).map(lambda drawn: int.from_bytes(drawn, "big"))
removals = st.lists(numbers, max_size=16).map(grow)


def walks(rows: Rows) -> Iterator[tuple[Key, str]]:
    """Go up from every checkpoint for each of its delta channels, to the seed, and give all that is passed."""
    for node in rows.checkpoints().values():
        for channel in node.delta_channels:
            cursor = node.parent
            while cursor is not None and (ancestor := rows.nodes.get(cursor)) is not None:
                yield cursor, channel
                cursor = None if channel in ancestor.values else ancestor.parent


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(removals)
def test_a_removal_leaves_what_survivors_need_and_nothing_else(case: tuple[Rows, list[set[Key]]]) -> None:
    rows, turns = case
    for survivors in turns:
        after = rows.carry_out(plan_removal(rows.nodes.values(), survivors))
        assert after.checkpoints().keys() == survivors
        for key in survivors:
            assert after.seen(after.nodes[key]) == rows.seen(rows.nodes[key])
        passed = set(walks(after))
        assert {key for key, _ in passed} - survivors == after.nodes.keys() - survivors
        needed = passed | {(n.parent, TASKS) for n in after.checkpoints().values() if n.format < 4}
        for ns, id_, channel in after.writes:
            assert (ns, id_) in survivors or ((ns, id_), channel) in needed
        named = {
            (node.checkpoint_ns, channel, version)
            for node in after.nodes.values()
            for channel, version in node.values.items()
            if version
        }
        assert after.values == named
        for key in survivors:
            parent = after.nodes[key].parent
            assert parent == rows.nodes[key].parent or parent is None
            if rows.nodes[key].parent in rows.nodes and rows.nodes[key].format >= 4:
                assert parent is None or parent in after.nodes
        rows = after


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(removals)
def test_removing_nothing_changes_nothing(case: tuple[Rows, list[set[Key]]]) -> None:
    rows, _ = case
    assert plan_removal(rows.nodes.values(), set(rows.nodes)) == Plan()


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(removals)
def test_a_repeated_removal_does_nothing(case: tuple[Rows, list[set[Key]]]) -> None:
    rows, turns = case
    after = rows.carry_out(plan_removal(rows.nodes.values(), turns[0]))
    again = after.carry_out(plan_removal(after.nodes.values(), turns[0]))
    assert again == after


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(removals)
def test_removals_in_steps_leave_what_one_removal_leaves(case: tuple[Rows, list[set[Key]]]) -> None:
    rows, turns = case
    in_turn = rows
    for survivors in turns:
        in_turn = in_turn.carry_out(plan_removal(in_turn.nodes.values(), survivors))
    at_once = rows.carry_out(plan_removal(rows.nodes.values(), turns[-1]))
    assert in_turn.nodes.keys() == at_once.nodes.keys()
    assert in_turn.writes == at_once.writes
    assert in_turn.values >= at_once.values  # an ancestor keeps its seeds as long as it stays itself


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(removals, st.integers(1, 4), st.none() | st.integers(0, 9))
def test_the_newest_of_each_namespace_survive(
    case: tuple[Rows, list[set[Key]]], keep_last: int, hours: int | None
) -> None:
    rows, _ = case
    cutoff = START + timedelta(hours=hours) if hours is not None else None
    survivors = choose_newest(rows.nodes.values(), keep_last, cutoff)
    kept = {key: key in survivors for key in rows.nodes}

    def rank(node: Node) -> int:
        return sum(
            other.checkpoint_ns == node.checkpoint_ns and other.ulid > node.ulid  # type: ignore[operator]
            for other in rows.nodes.values()
        )

    def due(node: Node) -> bool:
        return rank(node) < keep_last or (cutoff is not None and node.created_at >= cutoff)  # type: ignore[operator]

    def root_is_gone(ns: str) -> bool:
        head = next(n for n in rows.nodes.values() if n.checkpoint_ns == ns and rank(n) == 0)
        return kept.get(("", head.root_checkpoint_id or ""), True) is False

    def is_replayed_from(node: Node) -> bool:
        """Return whether a surviving root checkpoint would continue from this state of a subgraph."""
        own = [n for n in rows.nodes.values() if n.checkpoint_ns == node.checkpoint_ns]
        for root in rows.nodes.values():
            if root.checkpoint_ns == "" and kept[root.key]:
                before = [n for n in own if n.ulid < root.ulid]  # type: ignore[operator]
                if before and max(before, key=lambda n: n.ulid or uuid.UUID(int=0)) is node:
                    return True
        return False

    for node in rows.nodes.values():
        if node.checkpoint_ns == "":
            expected = due(node)
        elif ":" in node.checkpoint_ns:
            expected = due(node) and not root_is_gone(node.checkpoint_ns)
        else:
            expected = due(node) or is_replayed_from(node)
        assert kept[node.key] == expected
