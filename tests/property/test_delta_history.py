"""Delta histories of random forests are those that LangGraph's own walk up the parents gives."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_durable import DurableSaver
from tests.checkpoints import checkpoint_with, config_for
from tests.conftest import Databases
from tests.property.threads import Loop

EXAMPLES = int(os.environ.get("DURABLE_EXAMPLES", "500"))
CHANNELS = "abcd"
SEEDS = (None, 3, [1] * 50, _DeltaSnapshot(["x"]))
IDS = {
    "of their time": lambda number: str(uuid6()),
    "at random": lambda number: str(uuid4()),
    "falling": lambda number: f"{999 - number:03}",
    "in two bands": lambda number: f"{number % 20:02} {number:03}",
}


@pytest.fixture(scope="module")
def saver(databases: Databases, template: str) -> Iterator[DurableSaver]:
    name = databases.create(template)
    with DurableSaver.from_conn_string(databases.conninfo(name)) as made:
        yield made
    databases.drop(name)


@pytest.fixture(scope="module")
def loop(saver: DurableSaver) -> Iterator[Loop]:
    made = Loop()
    yield made
    made.run(saver.aclose())
    made.close()


@settings(max_examples=EXAMPLES // 5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    dice=st.randoms(use_true_random=False),
    size=st.integers(1, 90),
    forks=st.sampled_from([0, 0.05, 0.5]),
    valued=st.sampled_from([0, 0.02, 0.2]),
    ids=st.sampled_from(sorted(IDS)),
    prunes=st.booleans(),
)
def test_histories_are_those_of_the_reference_walk(
    saver: DurableSaver,
    dice: random.Random,
    size: int,
    forks: float,
    valued: float,
    ids: str,
    prunes: bool,
) -> None:
    thread_id = str(uuid4())
    stored: list[RunnableConfig] = []
    for number in range(size):
        parent = stored[-1] if stored else config_for(thread_id)
        if stored and dice.random() < forks:
            parent = dice.choice(stored)
        values: dict[str, Any] = {c: dice.choice(SEEDS) for c in CHANNELS if dice.random() < valued}
        made = checkpoint_with(values, id=IDS[ids](number))
        made["channel_versions"] = dict.fromkeys(CHANNELS, f"{number:04}")
        deltas: Any = {"source": "loop", "counters_since_delta_snapshot": dict.fromkeys(CHANNELS, (1, 1))}
        stored.append(saver.put(parent, made, deltas, made["channel_versions"]))
        for task in range(dice.choice([0, 1, 1, 2])):
            written = [(dice.choice(CHANNELS), f"{number} {task} {n}") for n in range(dice.randrange(1, 3))]
            saver.put_writes(stored[-1], written, f"task {dice.random()}", dice.choice(["", "~1"]))
    targets = [stored[-1], *dice.sample(stored, min(4, size))]
    wanted = dice.sample(CHANNELS, dice.randrange(1, 5))
    before = [agreed_history(saver, target, wanted) for target in targets]
    if prunes:
        saver.prune([thread_id], keep_last=dice.randrange(1, 4))
        survivors = {kept.checkpoint["id"]: kept for kept in saver.list(config_for(thread_id))}
        for target, known in zip(targets, before, strict=True):
            agreed_history(saver, target, wanted)
            if (kept := survivors.get(target["configurable"]["checkpoint_id"])) is not None:
                replayed = [c for c in wanted if c not in kept.checkpoint["channel_values"]]
                after = agreed_history(saver, target, replayed)
                assert after == {channel: known[channel] for channel in replayed}
    saver.delete_thread(thread_id)


class Removal(NamedTuple):
    """What is put, and what goes then: all but the newest checkpoints, or those of some runs."""

    puts: int
    keep_last: int | None
    runs: frozenset[int]


removals = st.builds(
    Removal, st.integers(1, 6), st.none() | st.integers(1, 4), st.frozensets(st.integers(0, 5), max_size=3)
)


@settings(max_examples=EXAMPLES // 5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    dice=st.randoms(use_true_random=False),
    rounds=st.lists(removals, min_size=1, max_size=4),
    forks=st.sampled_from([0, 0.2, 0.5]),
    valued=st.sampled_from([0, 0.1]),
    ids=st.sampled_from(sorted(IDS)),
)
def test_the_reference_walk_finds_what_removals_leave(
    saver: DurableSaver,
    loop: Loop,
    dice: random.Random,
    rounds: list[Removal],
    forks: float,
    valued: float,
    ids: str,
) -> None:
    thread_id = str(uuid4())
    stored: dict[str, RunnableConfig] = {}
    histories: dict[str, Any] = {}
    number = 0
    for removal in rounds:
        for _ in range(removal.puts):
            number += 1
            parent = list(stored.values())[-1] if stored else config_for(thread_id)
            if stored and dice.random() < forks:
                parent = dice.choice(list(stored.values()))
            values: dict[str, Any] = {c: dice.choice(SEEDS) for c in CHANNELS if dice.random() < valued}
            made = checkpoint_with(values, id=IDS[ids](number))
            made["channel_versions"] = dict.fromkeys(CHANNELS, f"{number:04}")
            deltas: Any = {"counters_since_delta_snapshot": dict.fromkeys(CHANNELS, (1, 1))}
            metadata: Any = {"source": "loop", "run_id": f"{thread_id} {dice.randrange(6)}", **deltas}
            config = saver.put(parent, made, metadata, made["channel_versions"])
            saver.put_writes(config, [(dice.choice(CHANNELS), number)], "task")
            stored[made["id"]] = config
            replayed = [channel for channel in CHANNELS if channel not in values]
            histories[made["id"]] = saver.get_delta_channel_history(config=config, channels=replayed)
        if removal.keep_last is not None:
            saver.prune([thread_id], keep_last=removal.keep_last)
        saver.delete_for_runs([f"{thread_id} {run}" for run in removal.runs])
        left = {t.checkpoint["id"] for t in saver.list(config_for(thread_id))}
        stored = {id_: config for id_, config in stored.items() if id_ in left}
        for id_, config in stored.items():
            channels = list(histories[id_])
            assert agreed_history(saver, config, channels) == histories[id_]
            walked = BaseCheckpointSaver.aget_delta_channel_history(saver, config=config, channels=channels)
            assert loop.run(walked) == histories[id_]
    saver.delete_thread(thread_id)


def agreed_history(saver: DurableSaver, target: RunnableConfig, channels: list[str]) -> Any:
    found = saver.get_delta_channel_history(config=target, channels=channels)
    assert found == BaseCheckpointSaver.get_delta_channel_history(saver, config=target, channels=channels)
    return found
