"""What delta channels are replayed from: the clauses of `get_delta_channel_history`, by both drivers."""

from __future__ import annotations

import operator
import random
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_durable import CheckpointCorrupted, DurableSaver, InvalidConfig, ParentMissing
from tests.acceptance.graphs import Graph, Saver, extend
from tests.checkpoints import checkpoint_with, config_for, get_values, put
from tests.drivers import Saver as Driven
from tests.proxy import Proxy
from tests.samples import Driver, Observer

TABLES = "langgraph_durable"


async def step(
    saver: Driven,
    parent: RunnableConfig | None = None,
    values: dict[str, Any] | None = None,
    *writes: Any,
    channel: str = "log",
    **others: Any,
) -> RunnableConfig:
    """Put a checkpoint with values, and what a task then wrote to a channel there."""
    stored = await put(saver, parent or config_for("thread"), checkpoint=checkpoint_with(values, **others))
    if writes:
        await saver.aput_writes(stored, [(channel, write) for write in writes], f"task {uuid4()}")
    return stored


async def history(saver: Driven, config: RunnableConfig, *channels: str) -> Any:
    found = await saver.aget_delta_channel_history(config=config, channels=channels)
    assert found == await BaseCheckpointSaver.aget_delta_channel_history(
        saver, config=config, channels=channels
    )
    return {
        channel: ([value for _, _, value in entry["writes"]], entry.get("seed", "no seed"))
        for channel, entry in found.items()
    }


async def test_without_a_seed_there_is_no_seed_key(driven: Driven) -> None:
    first = await step(driven, None, None, "a", "b")
    second = await step(driven, first, None, "c")
    third = await step(driven, second, None, "of its child")
    found = await driven.aget_delta_channel_history(config=third, channels=["log", "other"])
    assert found.keys() == {"log", "other"}
    assert [value for _, _, value in found["log"]["writes"]] == ["a", "b", "c"]
    assert [channel for _, channel, _ in found["log"]["writes"]] == ["log"] * 3
    assert found["log"].keys() == {"writes"}
    assert found["other"] == {"writes": []}


SEEDS = pytest.mark.parametrize(
    "seed",
    [
        pytest.param(_DeltaSnapshot(["a", "b"]), id="snapshot"),
        pytest.param(["plain"] * 100, id="list"),
        pytest.param({"files": {"a": 1}}, id="dict"),
        pytest.param("long" * 1000, id="long str"),
        pytest.param("short", id="str inside the checkpoint"),
        pytest.param(7, id="int inside"),
        pytest.param(1.5, id="float inside"),
        pytest.param(False, id="bool inside"),
        pytest.param(None, id="None inside"),
    ],
)


@SEEDS
async def test_whatever_value_is_nearest_is_the_seed(driven: Driven, seed: Any) -> None:
    far = await step(driven, None, {"log": "farther"}, "before the seed")
    seeded = await step(driven, far, {"log": seed}, "the seed's own")
    between = await step(driven, seeded, None, "after")
    target = await step(driven, between, {"log": "the target's own"}, "the target's")
    for config in (target, config_for("thread")):  # by id, and as the latest
        assert await history(driven, config, "log") == {"log": (["the seed's own", "after"], seed)}


@SEEDS
async def test_the_walk_of_others_finds_what_a_prune_left(
    driven: Driven, observer: Observer, seed: Any
) -> None:
    far = await step(driven, None, {"log": "farther"}, "before the seed")
    seeded = await step(driven, far, {"log": seed, "other": [1] * 99}, "the seed's own")
    await driven.aput_writes(seeded, [("other", "not replayed")], "other task")
    between = await step(driven, seeded, None, "after")
    counters: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"log": (1, 1)}}
    made = checkpoint_with(channel_versions={"log": f"{9:032}.0"})
    target = await driven.aput(between, made, counters, made["channel_versions"])
    await driven.aprune(["thread"])
    assert observer.rows(f"SELECT count(*) FROM {TABLES}.ancestors") == [(2,)]
    assert await history(driven, target, "log") == {"log": (["the seed's own", "after"], seed)}
    left = await stored_at(driven, seeded)
    assert left.checkpoint["channel_values"] == {"log": seed}
    assert [write[1:] for write in left.pending_writes or []] == [("log", "the seed's own")]
    assert left.parent_config == far
    assert left.config == seeded
    assert left.metadata == {"pruned": True}
    assert await driven.aget_tuple(far) is None
    assert [t.config async for t in driven.alist(config_for("thread"))] == [target]
    latest = await driven.aget_tuple(config_for("thread"))
    assert latest is not None
    assert latest.config == target
    await driven.acopy_thread("thread", "copy")
    copy = config_for("copy", target["configurable"]["checkpoint_id"])
    assert await history(driven, copy, "log") == {"log": (["the seed's own", "after"], seed)}


async def test_an_ancestor_whose_seed_is_missing_is_damage(driven: Driven, observer: Observer) -> None:
    for number, seed in enumerate(([1] * 50, 7)):
        thread = f"thread {number}"
        seeded = await step(driven, config_for(thread), {"log": seed})
        made = checkpoint_with(channel_versions={"log": f"{9:032}.0"})
        counters: Any = {"counters_since_delta_snapshot": {"log": (1, 1)}}
        await driven.aput(seeded, made, counters, made["channel_versions"])
        await driven.aprune([thread])
        assert (await get_values(driven, seeded)) == {"log": seed}
        observer.rows(f"DELETE FROM {TABLES}.channel_values")
        observer.rows(f"UPDATE {TABLES}.ancestors SET type = NULL, checkpoint = NULL")
        with pytest.raises(CheckpointCorrupted, match=seeded["configurable"]["checkpoint_id"]):
            await driven.aget_tuple(seeded)


async def test_a_ulid_names_the_target_too(driven: Driven) -> None:
    first = await step(driven, None, {"log": [1]}, "a")
    target = await step(driven, first, None, "b")
    await step(driven, target)
    ulid = await driven.aget_ulid(target)
    found = await driven.aget_delta_channel_history(config=config_for("thread", ulid), channels=["log"])
    assert [value for _, _, value in found["log"]["writes"]] == ["a"]
    assert found["log"]["seed"] == [1]


async def test_writes_of_a_step_are_in_the_order_of_its_tasks(driven: Driven) -> None:
    first = await step(driven)
    for task_id, path, value in (("a", "~2", "third"), ("b", "~1", "second"), ("z", "", "first")):
        await driven.aput_writes(first, [("log", f"{value} {n}") for n in range(2)], task_id, path)
    target = await step(driven, first)
    writes, _ = (await history(driven, target, "log"))["log"]
    assert writes == ["first 0", "first 1", "second 0", "second 1", "third 0", "third 1"]


async def test_only_ancestors_on_the_path_count(driven: Driven) -> None:
    root = await step(driven, None, {"log": ["seed"]}, "root")
    left = await step(driven, root, None, "left")
    right = await step(driven, root, {"log": ["right seed"]}, "right")
    left_leaf, right_leaf = await step(driven, left), await step(driven, right)
    assert await history(driven, left_leaf, "log") == {"log": (["root", "left"], ["seed"])}
    assert await history(driven, right_leaf, "log") == {"log": (["right"], ["right seed"])}
    assert await history(driven, right, "log") == {"log": (["root"], ["seed"])}


async def test_namespaces_and_threads_do_not_mix(driven: Driven) -> None:
    same = str(uuid6())
    leaves = []
    for thread, ns in (("thread", ""), ("thread", "inner"), ("other", "")):
        first = await step(driven, config_for(thread, None, ns), {"log": [ns]}, thread + ns, id=same)
        leaves.append(await step(driven, first))
    found = [(await history(driven, leaf, "log"))["log"] for leaf in leaves]
    assert found == [(["thread"], [""]), (["threadinner"], ["inner"]), (["other"], [""])]


async def test_a_parent_may_sort_above_its_child(driven: Driven) -> None:
    ids = sorted((str(uuid6()) for _ in range(4)), reverse=True)
    first = await step(driven, None, {"log": ["seed"]}, "a", id=ids[0])
    second = await step(driven, first, None, "b", id=ids[1])
    third = await step(driven, second, None, "c", id=ids[2])
    target = await step(driven, third, None, id=ids[3])
    assert await history(driven, target, "log") == {"log": (["a", "b", "c"], ["seed"])}


async def test_each_channel_goes_back_to_its_own_seed(driven: Driven) -> None:
    config: RunnableConfig | None = None
    seeds: list[dict[str, Any]] = [{"far": [0]}, {"near": "x"}, {}, {"nearest": [1] * 99}, {}]
    for number, values in enumerate(seeds):
        config = await step(driven, config, values)
        for channel in ("far", "near", "nearest", "none"):
            await driven.aput_writes(config, [(channel, number)], f"task of {channel}")
    target = await step(driven, config)
    assert await history(driven, target, "none", "nearest", "near", "far", "unknown") == {
        "none": ([0, 1, 2, 3, 4], "no seed"),
        "nearest": ([3, 4], [1] * 99),
        "near": ([1, 2, 3, 4], "x"),
        "far": ([0, 1, 2, 3, 4], [0]),
        "unknown": ([], "no seed"),
    }


class Plain(TypedDict):
    log: Annotated[list[str], operator.add]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=1000)]


def appending(saver: Saver, state: type[Any]) -> Graph:
    builder = StateGraph(state)
    builder.add_node("append", lambda state: {"log": [f"node {len(state['log'])}"]})
    builder.add_edge(START, "append")
    return builder.compile(checkpointer=saver)


async def test_a_channel_becomes_a_delta_channel_and_back(driven: Driven) -> None:
    config = config_for("thread")
    expected: list[str] = []
    for run, state in enumerate((Plain, Delta, Delta, Plain, Delta)):
        result = await appending(driven, state).ainvoke({"log": [f"input {run}"]}, config)
        expected += [f"input {run}", f"node {len(expected) + 1}"]
        assert result["log"] == expected
        for schema in (Plain, Delta):
            assert (await appending(driven, schema).aget_state(config)).values["log"] == expected


@pytest.mark.parametrize("value", [_DeltaSnapshot(["a"]), ["plain"] * 100, "inside the checkpoint"])
async def test_a_channel_without_a_new_version_has_its_parents_value(driven: Driven, value: Any) -> None:
    metadata: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"log": (0, 1)}}
    parent = await step(driven, None, {"log": value})
    versions = (await stored_at(driven, parent)).checkpoint["channel_versions"]
    same = await driven.aput(parent, checkpoint_with({}, channel_versions=versions), metadata, {})
    await driven.aput_writes(same, [("log", "mine")], "task")
    changed: ChannelVersions = {"log": f"{2:032}.{uuid4().hex[:13]}"}
    child = await driven.aput(same, checkpoint_with({}, channel_versions=changed), metadata, changed)
    await driven.aput_writes(parent, [("log", "of another branch")], "task")
    assert (await get_values(driven, same)) == {"log": value}
    assert (await get_values(driven, child)) == {}
    assert await history(driven, child, "log") == {"log": (["mine"], value)}
    found = await driven.aget_delta_channel_history(config=child, channels=["log"])
    await driven.aprune(["thread"])
    assert await driven.aget_delta_channel_history(config=child, channels=["log"]) == found


async def stored_at(saver: Driven, config: RunnableConfig) -> CheckpointTuple:
    found = await saver.aget_tuple(config)
    assert found is not None
    return found


async def test_no_channels_no_histories(driven: Driven) -> None:
    target = await step(driven, await step(driven, None, None, "a"))
    assert await driven.aget_delta_channel_history(config=target, channels=[]) == {}


async def test_one_str_is_no_list_of_channels(driven: Driven) -> None:
    target = await step(driven)
    with pytest.raises(TypeError):
        await driven.aget_delta_channel_history(config=target, channels="log")


async def test_a_config_without_a_thread_is_refused(driven: Driven) -> None:
    with pytest.raises(InvalidConfig):
        await driven.aget_delta_channel_history(config={"configurable": {}}, channels=["log"])


async def test_an_unknown_checkpoint_has_no_history(driven: Driven) -> None:
    await step(driven, await step(driven, None, {"log": [1]}, "a"))
    for config in (
        config_for("thread", str(uuid6())),
        config_for("nobody"),
        config_for("thread", None, "ns"),
    ):
        assert await history(driven, config, "log") == {"log": ([], "no seed")}


async def test_a_parent_that_was_never_stored_ends_the_walk(driven: Driven) -> None:
    first = await step(driven, config_for("thread", str(uuid6())), None, "a")
    assert await history(driven, await step(driven, first), "log") == {"log": (["a"], "no seed")}


async def test_random_forests_are_read_as_by_langgraph_itself(driven: Driven) -> None:
    dice = random.Random(7)
    seeds = (None, 3, "s", [1] * 50, _DeltaSnapshot(["x"]), {"k": "v"})
    for tree in range(8):
        stored: list[RunnableConfig] = []
        for number in range(14):
            parent = dice.choice([*stored[-1:] * 3, *stored]) if stored else config_for(f"tree {tree}")
            values = {c: dice.choice(seeds) for c in "abc" if dice.random() < 0.15}
            stored.append(await step(driven, parent, values))
            for task in range(dice.randrange(3)):
                written = [(dice.choice("abcd"), f"{number} {task} {n}") for n in range(dice.randrange(1, 4))]
                await driven.aput_writes(
                    stored[-1], written, f"task {dice.random()}", dice.choice(["", "~1"])
                )
        for target in stored:
            await history(driven, target, *dice.sample("abcd", dice.randrange(1, 5)))


# --- runs: the chain is read in stretches, which forks and odd ids cut short ---


async def chain(saver: Driven, parent: RunnableConfig | None, length: int, name: str) -> list[RunnableConfig]:
    configs = []
    for number in range(length):
        parent = await step(saver, parent, None, f"{name} {number}")
        configs.append(parent)
    return configs


async def test_a_fork_deep_in_the_chain_with_a_seed_on_the_sibling(driven: Driven) -> None:
    trunk = await chain(driven, await step(driven, None, {"log": ["root"]}), 40, "trunk")
    sibling = await step(driven, trunk[-10], {"log": ["sibling's"]}, "of the sibling")
    own = await chain(driven, trunk[-10], 40, "own")
    expected = [f"trunk {n}" for n in range(31)] + [f"own {n}" for n in range(39)]
    assert await history(driven, own[-1], "log") == {"log": (expected, ["root"])}
    assert await history(driven, await step(driven, sibling), "log") == {
        "log": (["of the sibling"], ["sibling's"])
    }


async def test_two_branches_that_take_turns(driven: Driven) -> None:
    heads = [await step(driven, None, {"log": ["root"]})] * 2
    for number in range(40):
        heads = [await step(driven, head, None, f"{side} {number}") for side, head in enumerate(heads)]
    for side, head in enumerate(heads):
        expected = [f"{side} {n}" for n in range(39)]
        assert await history(driven, head, "log") == {"log": (expected, ["root"])}


async def test_a_parent_whose_ulid_is_above_its_childs(driven: Driven, observer: Observer) -> None:
    configs = await chain(driven, await step(driven, None, {"log": ["root"]}), 40, "step")
    for place in (3, 20, 21):
        id_ = configs[place]["configurable"]["checkpoint_id"]
        observer.rows(
            f"UPDATE {TABLES}.checkpoints SET ulid = %s WHERE checkpoint_id = %s", (f"f{place:031x}", id_)
        )
    assert await history(driven, configs[-1], "log") == {"log": ([f"step {n}" for n in range(39)], ["root"])}


async def test_writes_of_others_among_a_runs_ids_are_left_out(driven: Driven) -> None:
    # The ids of one run lie between those of another: each is read as a range, and both see the others' writes.
    ids = [f"{n:03}" for n in range(60)]
    first = await step(driven, None, {"log": ["root"], "other": 1}, id="000")
    for id_ in ids[1::2]:
        first = await step(driven, first, None, id_, id=id_)
    await driven.aput_writes(config_for("thread", "004x"), [("log", "of none stored")], "task")
    middle = await step(driven, first, {"other": 2}, "middle", id="zzz")
    for id_ in ids[2::2]:
        middle = await step(driven, middle, None, id_, id=id_)
    target = await step(driven, middle, id="last")
    await driven.aput_writes(target, [("other", "of the target")], "task")
    found = await history(driven, target, "log", "other")
    assert found == {"log": ([*ids[1::2], "middle", *ids[2::2]], ["root"]), "other": ([], 2)}


async def test_what_was_pruned_is_read_in_one_round_trip(
    proxy: Proxy, observer: Observer, drive: Driver
) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        config = await step(saver, None, {"log": ["root"], "rare": 1})
        for number in range(50):
            made = checkpoint_with({"rare": number} if number == 30 else None)
            made["channel_versions"] |= {"log": f"{number}", "rare": f"{number}"}
            counters: Any = {
                "source": "loop",
                "counters_since_delta_snapshot": {"log": (1, 1), "rare": (1, 1)},
            }
            config = await put(saver, config, metadata=counters, checkpoint=made)
            await saver.aput_writes(config, [("log", number), ("rare", number)], "task")
        before = await history(saver, config, "log", "rare")
        await saver.aprune(["thread"])
        assert observer.rows(f"SELECT count(*) FROM {TABLES}.ancestors") == [(50,)]
        await drive(saver, "get_delta_channel_history", config=config, channels=["log"])
        trips = proxy.round_trips
        after = await drive(saver, "get_delta_channel_history", config=config, channels=["log", "rare"])
        assert proxy.round_trips - trips == 1
        for channel, (values, seed) in before.items():
            assert ([v for _, _, v in after[channel]["writes"]], after[channel]["seed"]) == (values, seed)
        assert before == {"log": (list(range(49)), ["root"]), "rare": (list(range(30, 49)), 30)}
        # A checkpoint put again, with more in it than was kept of it, counts before the ancestor that it left.
        again = checkpoint_with(
            {"log": ["again"]},
            id=observer.rows(f"SELECT checkpoint_id FROM {TABLES}.ancestors ORDER BY 1 OFFSET 40 LIMIT 1")[0][
                0
            ],
        )
        await put(saver, config_for("thread"), checkpoint=again)
        found = await saver.aget_delta_channel_history(config=config, channels=["log"])
        assert found["log"]["seed"] == ["again"]
        assert [v for _, _, v in found["log"]["writes"]] == list(range(39, 49))


# --- damage ---


async def test_a_ring_of_parents_ends(driven: Driven, observer: Observer) -> None:
    configs = [await step(driven, None, None, 0)]
    for number in range(1, 4):
        configs.append(await step(driven, configs[-1], None, number))
    first, last = (c["configurable"]["checkpoint_id"] for c in (configs[0], configs[-1]))
    observer.rows(
        f"UPDATE {TABLES}.checkpoints SET parent_checkpoint_id = %s WHERE checkpoint_id = %s", (last, first)
    )
    found = await driven.aget_delta_channel_history(config=configs[-1], channels=["log"])
    assert [value for _, _, value in found["log"]["writes"]] == [3, 0, 1, 2]
    assert "seed" not in found["log"]


async def test_a_missing_seed_is_damage_not_emptiness(driven: Driven, observer: Observer) -> None:
    seeded = await step(driven, None, {"log": [1] * 50, "other": [2] * 50}, "a")
    target = await step(driven, seeded)
    observer.rows(f"DELETE FROM {TABLES}.channel_values WHERE channel = 'log'")
    with pytest.raises(CheckpointCorrupted, match=seeded["configurable"]["checkpoint_id"]):
        await driven.aget_delta_channel_history(config=target, channels=["log", "other"])
    found = await driven.aget_delta_channel_history(config=target, channels=["other"])
    assert found["other"].get("seed") == [2] * 50


async def test_a_seed_that_cannot_be_read_is_damage(driven: Driven, observer: Observer) -> None:
    seeded = await step(driven, None, {"log": [1] * 50}, "a")
    target = await step(driven, seeded)
    observer.rows(f"UPDATE {TABLES}.channel_values SET data = '\\xc1'")
    with pytest.raises(CheckpointCorrupted, match="log"):
        await driven.aget_delta_channel_history(config=target, channels=["log"])


# --- gaps ---


def delta_at(number: int, **values: Any) -> Any:
    """Return what `put` takes of a checkpoint whose channel "log" is replayed, unless a value is given."""
    made = checkpoint_with(values, id=f"step {number}")
    made["channel_versions"]["log"] = f"{number + 1:032}.0"
    counters = {} if "log" in values else {"counters_since_delta_snapshot": {"log": (1, 1)}}
    return made, {"source": "loop", "step": number, **counters}, made["channel_versions"]


@pytest.mark.parametrize("ns", ["", "inner"])
async def test_a_delta_channel_is_not_stored_after_a_gap(driven: Driven, observer: Observer, ns: str) -> None:
    thread = config_for("thread", None, ns)
    first = await driven.aput(thread, *delta_at(0, log=["seed"], plain=[0] * 99))
    missing = config_for("thread", "step 1", ns)
    with pytest.raises(ParentMissing) as refused:
        await driven.aput(missing, *delta_at(2, plain=[2] * 99))
    for name in ("'thread'", f"namespace {ns!r}", "'step 2'", "'step 1'", "'log'", "run again"):
        assert name in str(refused.value)
    assert [t.config async for t in driven.alist(thread)] == [first]
    assert observer.rows(f"SELECT version FROM {TABLES}.channel_values WHERE version LIKE '%3.0'") == []
    # What needs no parent may come without.
    await driven.aput(missing, *delta_at(3, log=_DeltaSnapshot(["whole"])))
    await step(driven, missing, {"plain": 1}, id="step 4")
    # Nor does the channel stay out once its parent is there.
    second = await driven.aput(first, *delta_at(1))
    third = await driven.aput(missing, *delta_at(2))
    await driven.aput_writes(second, [("log", "second")], "task")
    assert await history(driven, third, "log") == {"log": (["second"], ["seed"])}


async def test_a_thread_is_imported_parents_first(driven: Driven) -> None:
    graph = appending(driven, Delta)
    for number in range(3):
        await graph.ainvoke({"log": [f"input {number}"]}, config_for("thread"))
    stored = [t async for t in driven.alist(config_for("thread"))]
    values = (await graph.aget_state(config_for("thread"))).values

    async def import_(found: CheckpointTuple, thread_id: str) -> None:
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
        versions = found.checkpoint["channel_versions"]
        target = config_for(thread_id, parent)
        config = await driven.aput(target, found.checkpoint, found.metadata, versions)
        for task_id, channel, value in found.pending_writes or []:
            await driven.aput_writes(config, [(channel, value)], f"{task_id} {channel}")

    for found in reversed(stored):
        await import_(found, "copy")
    assert (await graph.aget_state(config_for("copy"))).values == values
    with pytest.raises(ParentMissing, match="parents before their children"):
        for found in stored:
            await import_(found, "children first")
    assert [t async for t in driven.alist(config_for("children first"))] == []


# --- length ---

STEPS = 5000


async def test_thousands_of_steps_are_read_at_once(proxy: Proxy, observer: Observer, drive: Driver) -> None:
    async with DurableSaver.from_conn_string(proxy.conninfo, max_size=1) as saver:
        first = await step(saver, None, {"log": ["seed"] * 50}, 0, id="step 0")
        observer.rows(
            f"""
            INSERT INTO {TABLES}.checkpoints SELECT (jsonb_populate_record(c, jsonb_build_object(
                'checkpoint_id', 'step ' || n, 'parent_checkpoint_id', 'step ' || n - 1, 'ulid',
                lpad(to_hex(n), 32, '0'), 'value_channels', '[]'::jsonb, 'value_versions', '[]'::jsonb))).*
            FROM {TABLES}.checkpoints c, generate_series(1, {STEPS}) AS n
            """
        )
        observer.rows(
            f"""
            INSERT INTO {TABLES}.writes SELECT (jsonb_populate_record(w, jsonb_build_object(
                'checkpoint_id', 'step ' || n))).*
            FROM {TABLES}.writes w, generate_series(1, {STEPS}) AS n
            """
        )
        target = config_for("thread", f"step {STEPS}")
        await drive(saver, "get_delta_channel_history", config=first, channels=["log"])
        before = proxy.round_trips
        found = await drive(saver, "get_delta_channel_history", config=target, channels=["log", "other"])
        assert proxy.round_trips - before == 1
        assert len(found["log"]["writes"]) == STEPS
        assert found["log"]["seed"] == ["seed"] * 50
        assert found["other"] == {"writes": []}
        assert (await get_values(saver, first))["log"] == ["seed"] * 50
