"""Pending writes: which stands, in which order, and when they come before their checkpoint."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from tests.checkpoints import checkpoint_with, config_for, put
from tests.drivers import Saver


async def pending(saver: Saver, config: Any) -> list[tuple[str, str, Any]]:
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes is not None
    return found.pending_writes


async def test_the_first_regular_write_of_a_task_wins(driven: Saver) -> None:
    stored = await put(driven, config_for("t"))
    await driven.aput_writes(stored, [("a", 1), ("b", 1)], "task")
    await driven.aput_writes(stored, [("a", 2), ("b", 2), ("c", 2)], "task")
    assert await pending(driven, stored) == [("task", "a", 1), ("task", "b", 1), ("task", "c", 2)]


async def test_the_last_special_write_of_a_task_wins(driven: Saver) -> None:
    stored = await put(driven, config_for("t"))
    await driven.aput_writes(stored, [(ERROR, "first")], "task")
    await driven.aput_writes(stored, [(ERROR, "second"), (INTERRUPT, ["?"])], "task")
    await driven.aput_writes(stored, [(RESUME, [1]), (RESUME, [1, 2])], "task")  # one channel twice in a call
    assert set(map(str, await pending(driven, stored))) == {
        str(("task", RESUME, [1, 2])),
        str(("task", INTERRUPT, ["?"])),
        str(("task", ERROR, "second")),
    }


async def test_a_mixed_call_keeps_last_special_and_first_regular_writes(driven: Saver) -> None:
    stored = await put(driven, config_for("t"))
    await driven.aput_writes(stored, [(ERROR, "first")], "task")
    await driven.aput_writes(stored, [("a", 1), (ERROR, "second")], "task")
    assert await pending(driven, stored) == [("task", ERROR, "second"), ("task", "a", 1)]
    await driven.aput_writes(stored, [("a", 2), (ERROR, "third"), ("b", 2)], "task")
    assert await pending(driven, stored) == [("task", ERROR, "third"), ("task", "a", 1), ("task", "b", 2)]


async def test_writes_are_returned_in_the_order_live_execution_applies_them(driven: Saver) -> None:
    stored = await put(driven, config_for("t"))
    keys = [("~2", "b"), ("~10", "a"), ("", "z"), ("ž", "c"), ("\U0001f40e", "d"), ("Z", "e"), ("~2", "aa")]
    for path, task in keys:
        await driven.aput_writes(stored, [("a", 0), ("b", 1)], task, path)
    expected = [(task, "ab"[idx], idx) for path, task, idx in sorted(
        writes_sort_key(path, task, idx) for path, task in keys for idx in (0, 1)
    )]  # fmt: skip
    assert await pending(driven, stored) == expected
    [listed] = [t async for t in driven.alist(config_for("t"))]
    assert listed.pending_writes == expected


async def test_writes_may_come_before_their_checkpoint(driven: Saver) -> None:
    checkpoint = checkpoint_with()
    await driven.aput_writes(config_for("t", checkpoint["id"]), [("a", 1)], "task")
    assert await driven.aget_tuple(config_for("t")) is None
    stored = await put(driven, config_for("t"), checkpoint=checkpoint)
    assert await pending(driven, stored) == [("task", "a", 1)]


async def test_storing_no_writes_is_not_an_error(driven: Saver) -> None:
    stored = await put(driven, config_for("t"))
    await driven.aput_writes(stored, [], "task")
    assert await pending(driven, stored) == []


async def test_checkpoints_before_v4_find_their_sends_in_their_parents_writes(driven: Saver) -> None:
    parent = await put(driven, config_for("t"))
    await driven.aput_writes(parent, [("other", 0), (TASKS, "b1")], "task-b", "~2")
    await driven.aput_writes(parent, [(TASKS, "a1"), (TASKS, "a2")], "task-a", "~2")
    await driven.aput_writes(parent, [(TASKS, "first")], "task-z", "~1")
    elsewhere = config_for("t", parent["configurable"]["checkpoint_id"], "other-namespace")
    await driven.aput_writes(elsewhere, [(TASKS, "not mine")], "task-x", "")
    old = await put(driven, parent, checkpoint=checkpoint_with({"a": [1]}, v=3))
    found = await driven.aget_tuple(old)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": [1], TASKS: ["first", "a1", "a2", "b1"]}
    versions = found.checkpoint["channel_versions"]
    assert versions[TASKS] == versions["a"]
    new = await put(driven, parent, checkpoint=checkpoint_with({"a": [1]}, v=4))
    found = await driven.aget_tuple(new)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": [1]}

    bare = await put(driven, parent, checkpoint=checkpoint_with(v=1))
    found = await driven.aget_tuple(bare)
    assert found is not None
    assert found.checkpoint["channel_versions"] == {TASKS: found.checkpoint["channel_versions"][TASKS]}
