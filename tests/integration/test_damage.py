"""One damaged row: it is named by whatever reads it, and hides nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from langgraph.types import Interrupt

from langgraph_durable import (
    CheckpointCorrupted,
    DurableSaver,
    EffectLog,
    Happened,
    PruneFailed,
    pending_interrupts,
)
from langgraph_durable.cli import main
from tests.conftest import Databases
from tests.damage import THREADS, allow_any_state, build, config_of, damage, fill

TIMES = ["infinity", "-infinity", "20000-01-01", "4000-01-01 BC"]
NO_OBJECTS = ["1", "[]", "null", '"text"']
LATEST = "checkpoint_id = (SELECT max(checkpoint_id) FROM {s}.checkpoints WHERE thread_id = 'damaged')"
OF_THREAD = "effect_id IN (SELECT effect_id FROM {s}.effects WHERE thread_id = 'damaged')"


@pytest.fixture(scope="module")
def filled(databases: Databases, template: str) -> Iterator[str]:
    name = databases.create(template)
    with DurableSaver.from_conn_string(databases.conninfo(name)) as saver:
        fill(saver, databases.conninfo(name))
    yield name
    databases.drop(name)


@pytest.fixture
def conninfo(databases: Databases, filled: str) -> Iterator[str]:
    name = databases.create(filled)
    yield databases.conninfo(name)
    databases.drop(name)


def unreadable(saver: DurableSaver, thread_id: str = "damaged") -> list[str]:
    told = list(saver.timeline(thread_id))
    return [e.payload["unreadable"] for e in told if "unreadable" in e.payload]


# --- times ---


@pytest.mark.parametrize("time", TIMES)
def test_a_question_with_a_damaged_time_is_in_the_inbox_and_so_are_the_others(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    before = list(pending_interrupts(saver))
    damage(conninfo, f"UPDATE {{s}}.writes SET stored_at = '{time}' WHERE thread_id = 'damaged'")
    damaged, *others = pending_interrupts(saver)
    assert [w.interrupt_id for w in others] == [w.interrupt_id for w in before[1:]]
    assert [w.unreadable for w in others] == [None, None]
    assert (damaged.interrupt_id, damaged.question) == (before[0].interrupt_id, "go on?")
    for part in ("stored_at", "'damaged'", damaged.checkpoint_id):
        assert part in str(damaged.unreadable)
    assert timedelta(0) <= damaged.age < timedelta(hours=1)  # its checkpoint's
    assert main(["interrupts", "--database", conninfo]) == 0
    assert capsys.readouterr().out.count("go on?") == 2
    # A checkpoint that does not tell either leaves no time at all.
    damage(conninfo, f"UPDATE {{s}}.checkpoints SET created_at = '{time}' WHERE thread_id = 'damaged'")
    assert [w.thread_id for w in pending_interrupts(saver)] == list(THREADS)
    assert main(["interrupts", "--json", "--database", conninfo]) == 0
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 3


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize(
    ("table", "column"), [("writes", "stored_at"), ("checkpoints", "created_at"), ("effect_events", "at")]
)
def test_a_timeline_tells_of_a_damaged_time_and_of_all_else(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str], table: str, column: str, time: str
) -> None:
    before = list(saver.timeline("damaged"))
    where = {
        "writes": "channel = '__interrupt__' AND thread_id = 'damaged'",
        "checkpoints": LATEST,
        "effect_events": f"{OF_THREAD} AND to_state = 'unknown'",
    }[table]
    damage(conninfo, f"UPDATE {{s}}.{table} SET {column} = '{time}' WHERE {where}")
    [why] = unreadable(saver)
    assert f"{column}: infinite, or outside of the years 1 to 9999" in why
    after = list(saver.timeline("damaged"))
    told = [(e.phase, e.checkpoint_id) for e in before]
    left = [(e.phase, e.checkpoint_id) for e in after if e.phase != "unreadable"]
    if table == "effect_events":  # told as unreadable, with all it says
        [event] = [e for e in after if e.phase == "unreadable"]
        assert event.payload["to"] == "unknown"
        told = [one for one in told if one[0] != "tool_unknown"]
    assert sorted(left) == sorted(told)
    assert main(["timeline", "damaged", "--database", conninfo]) == 0
    assert f"{column}: infinite" in capsys.readouterr().out


def test_events_of_damaged_times_fill_pages_that_end(
    saver: DurableSaver, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("langgraph_durable._timeline._EVENTS", 2)
    before = [e.payload for e in saver.timeline("damaged") if e.phase.startswith("tool_")]
    for time in TIMES:
        damage(conninfo, f"UPDATE {{s}}.effect_events SET at = '{time}' WHERE {OF_THREAD}")
        told = [e.payload for e in saver.timeline("damaged") if "effect_id" in e.payload]
        assert len(unreadable(saver)) == len(told) == len(before)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize(
    "column", ["lease_until", "first_attempt_at", "attempted_at", "ended_at", "expired_at"]
)
def test_an_effect_with_a_damaged_time_is_listed_and_so_are_the_others(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str], column: str, time: str
) -> None:
    log = EffectLog.from_saver(saver)
    before, pending = log.list(), log.pending()
    assert [e.unreadable for e in before] == [None] * len(before)
    damage(conninfo, f"UPDATE {{s}}.effects SET {column} = '{time}' WHERE thread_id = 'damaged'")
    after = log.list()
    assert [(e.effect_id, e.state, e.args) for e in after] == [(e.effect_id, e.state, e.args) for e in before]
    for record in after:
        if record.thread_id == "damaged":
            assert record.unreadable is not None
            assert f"{column}: infinite" in record.unreadable
            assert record.effect_id in record.unreadable
            assert log.get(record.effect_id) == record
            assert [e.unreadable for e in log.history(record.effect_id)] == [None, None]
        else:
            assert record.unreadable is None
    assert [e.effect_id for e in log.pending()] == [e.effect_id for e in pending]
    assert log.list(thread_id="damaged") == [e for e in after if e.thread_id == "damaged"]
    for options in ([], ["--all"], ["--all", "--json"]):
        assert main(["effects", "list", *options, "--database", conninfo]) == 0
        assert f"{column}: infinite" in capsys.readouterr().out
    assert main(["effects", "show", after[0].effect_id, "--database", conninfo]) == 0


@pytest.mark.parametrize("time", [*TIMES, None])
def test_an_effect_whose_lease_is_damaged_waits_for_a_decision(
    saver: DurableSaver, conninfo: str, time: str | None
) -> None:
    log = EffectLog.from_saver(saver)
    damage(
        conninfo,
        "UPDATE {s}.effects SET state = 'issued', lease_until = %s WHERE thread_id = 'damaged' AND tool = 'lose'",
        [time],
    )
    [waiting] = log.pending("damaged")
    assert waiting.state == "issued"
    assert "lease_until" in str(waiting.unreadable)
    assert log.resolve(waiting.effect_id, Happened("sent")).state == "completed"
    assert not log.pending("damaged")


@pytest.mark.parametrize("time", TIMES)
def test_what_cannot_tell_a_checkpoints_age_is_not_pruned_by_it(
    saver: DurableSaver, conninfo: str, time: str
) -> None:
    damage(conninfo, f"UPDATE {{s}}.checkpoints SET created_at = '{time}' WHERE {LATEST}")
    for prune in PRUNES.values():
        with pytest.raises(PruneFailed) as caught:
            prune(saver)
        [(thread_id, why)] = caught.value.failures.items()
        assert thread_id == "damaged"
        assert isinstance(why, CheckpointCorrupted)
        assert "created_at" in str(why)
        assert len(list(saver.list(config_of("damaged")))) == 3


PRUNES: dict[str, Callable[[DurableSaver], Any]] = {
    "prune": lambda saver: saver.prune(THREADS, keep_last=1),
    "compact": lambda saver: saver.compact(build(saver), THREADS),
    "sweep": lambda saver: saver.sweep(keep_last=1),
}

# --- what tells which values a checkpoint has ---

ARRAYS = {
    "a NULL channel": "value_channels[1] = NULL",
    "a NULL channel more": (
        "value_channels = value_channels || NULL::text, value_versions = value_versions || '1'::text"
    ),
    "arrays of arrays": "value_channels = ARRAY[value_channels], value_versions = ARRAY[value_versions]",
    "versions in arrays": "value_channels = ARRAY['long', 'runs'], value_versions = ARRAY[ARRAY['1'], ARRAY['2']]",
    "a channel too many": "value_channels = value_channels || 'more'::text",
    "a version too many": "value_versions = value_versions || NULL::text",
    "no channels": "value_channels = '{{}}'",
}


@pytest.mark.parametrize("arrays", ARRAYS)
def test_damaged_arrays_of_channels_are_named(saver: DurableSaver, conninfo: str, arrays: str) -> None:
    config = config_of("damaged")
    [latest, *older] = [found.checkpoint["id"] for found in saver.list(config)]
    damage(conninfo, f"UPDATE {{s}}.checkpoints SET {ARRAYS[arrays]} WHERE {LATEST}")
    reads: dict[str, Callable[[], Any]] = {
        "get_tuple": lambda: saver.get_tuple(config),
        "list": lambda: list(saver.list(config)),
        "get_state": lambda: build(saver).get_state(config),
    }
    for name, read in reads.items():
        with pytest.raises(CheckpointCorrupted) as caught:
            read()
        for part in ("thread 'damaged'", "namespace ''", latest):
            assert part in str(caught.value), name
    for prune in PRUNES.values():
        with pytest.raises(PruneFailed) as failed:
            prune(saver)
        assert list(failed.value.failures) == ["damaged"]
        assert latest in str(failed.value.failures["damaged"])
    assert [saver.get_tuple(found) is not None for found in map(config_of, THREADS[1:])] == [True, True]
    assert older


def test_what_a_listing_comes_to_before_a_damaged_array_is_listed(saver: DurableSaver, conninfo: str) -> None:
    ids = [found.checkpoint["id"] for found in saver.list(config_of("damaged"))]
    damage(conninfo, "UPDATE {s}.checkpoints SET value_channels[1] = NULL WHERE checkpoint_id = %s", [ids[1]])
    found = []
    with pytest.raises(CheckpointCorrupted, match=ids[1]):
        for listed in saver.list(config_of("damaged")):
            found.append(listed.checkpoint["id"])
    assert found == ids[:1]


@pytest.mark.parametrize(
    ("table", "arrays"),
    [
        *(("checkpoints", arrays) for arrays in ARRAYS if arrays != "no channels"),
        *(("ancestors", arrays) for arrays in ARRAYS if arrays not in ("no channels", "arrays of arrays")),
    ],
)
def test_a_history_is_not_read_past_damaged_arrays(
    saver: DurableSaver, conninfo: str, table: str, arrays: str
) -> None:
    config = config_of("damaged")
    before = saver.get_delta_channel_history(config=config, channels=["log"])
    assert len(before["log"]["writes"]) > 3
    where = f"NOT {LATEST}" if table == "checkpoints" else "parent_checkpoint_id IS NOT NULL"
    damage(conninfo, f"UPDATE {{s}}.{table} SET {ARRAYS[arrays]} WHERE thread_id = 'damaged' AND {where}")
    with pytest.raises(
        CheckpointCorrupted, match=r"value_channels .* 'damaged', namespace '', checkpoint '1"
    ):
        saver.get_delta_channel_history(config=config, channels=["log"])
    healthy = saver.get_delta_channel_history(config=config_of("healthy 1"), channels=["log"])
    assert len(healthy["log"]["writes"]) == len(before["log"]["writes"])


@pytest.mark.parametrize("array", ["'{{NULL}}'", "delta_channels || NULL::text", "ARRAY[delta_channels]"])
def test_damaged_delta_channels_are_named(saver: DurableSaver, conninfo: str, array: str) -> None:
    damage(conninfo, f"UPDATE {{s}}.checkpoints SET delta_channels = {array} WHERE {LATEST}")
    for prune in PRUNES.values():
        with pytest.raises(PruneFailed) as failed:
            prune(saver)
        assert list(failed.value.failures) == ["damaged"]
        assert "delta_channels" in str(failed.value.failures["damaged"])
    assert len(list(saver.list(config_of("damaged")))) == 3


@pytest.mark.parametrize(
    "change", ["segments[1] = NULL", "segments = segments || NULL::bytea", "data = NULL"]
)
def test_damaged_lists_of_segments_are_named(saver: DurableSaver, conninfo: str, change: str) -> None:
    damage(
        conninfo, f"UPDATE {{s}}.channel_values SET {change} WHERE thread_id = 'damaged' AND channel = 'long'"
    )
    config = config_of("damaged")
    reads: dict[str, Callable[[], Any]] = {
        "get_tuple": lambda: saver.get_tuple(config),
        "list": lambda: list(saver.list(config)),
        "list of all": lambda: list(saver.list(None)),
        "get_state": lambda: build(saver).get_state(config),
    }
    for name, read in reads.items():
        with pytest.raises(CheckpointCorrupted) as caught:
            read()
        for part in ("channel 'long'", "thread 'damaged'", "namespace ''"):
            assert part in str(caught.value), name
    for thread_id in THREADS[1:]:
        assert len(list(saver.list(config_of(thread_id)))) == 3


def test_a_value_that_is_not_there_is_not_an_empty_one(saver: DurableSaver, conninfo: str) -> None:
    damage(
        conninfo,
        "UPDATE {s}.channel_values SET type = 'bytes', data = NULL, segments = NULL "
        "WHERE thread_id = 'damaged' AND channel = 'long'",
    )
    with pytest.raises(CheckpointCorrupted, match="channel 'long'"):
        saver.get_tuple(config_of("damaged"))


# --- metadata ---


@pytest.mark.parametrize("index", NO_OBJECTS)
def test_a_metadata_index_that_is_no_object_leaves_nothing_out(
    saver: DurableSaver, conninfo: str, index: str
) -> None:
    config = config_of("damaged")
    before = list(saver.list(config))
    of_all = list(saver.list(None))
    loops = [found for found in before if found.metadata["source"] == "loop"]
    assert 0 < len(loops) < len(before)
    damage(conninfo, "UPDATE {s}.checkpoints SET metadata_index = %s WHERE thread_id = 'damaged'", [index])
    assert list(saver.list(config)) == before
    assert list(saver.list(None)) == of_all
    assert list(saver.list(config, filter={"source": "loop"})) == loops
    assert list(saver.list(config, filter={"source": "no such"})) == []
    for prune in PRUNES.values():  # it may hide a fork, from whose parent subgraphs are replayed
        with pytest.raises(PruneFailed) as failed:
            prune(saver)
        assert "metadata_index" in str(failed.value.failures["damaged"])


# --- effects ---


def test_an_effect_in_no_known_state_is_listed_and_waits_for_a_decision(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EffectLog.from_saver(saver)
    before, pending = log.list(), log.pending()
    allow_any_state(conninfo)
    damage(conninfo, "UPDATE {s}.effects SET state = 'molten' WHERE thread_id = 'damaged' AND tool = 'lose'")
    assert [e.effect_id for e in log.list()] == [e.effect_id for e in before]
    assert [e.effect_id for e in log.pending()] == [e.effect_id for e in pending]
    [damaged] = [e for e in log.pending() if e.thread_id == "damaged"]
    assert "state: 'molten' is none that is known" in str(damaged.unreadable)
    with pytest.raises(CheckpointCorrupted, match=damaged.effect_id):
        log.resolve(damaged.effect_id, Happened("sent"))
    assert main(["effects", "list", "--database", conninfo]) == 0
    assert "molten" in capsys.readouterr().out


@pytest.mark.parametrize("column", ["from_state", "to_state"])
def test_an_event_of_no_known_state_is_told(
    saver: DurableSaver, conninfo: str, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    before = list(saver.timeline("damaged"))
    damage(
        conninfo,
        f"UPDATE {{s}}.effect_events SET {column} = 'molten' WHERE {OF_THREAD} AND to_state = 'unknown'",
    )
    [why] = unreadable(saver)
    assert f"{column}: 'molten' is none that is known" in why
    assert len(list(saver.timeline("damaged"))) == len(before)
    assert main(["timeline", "damaged", "--database", conninfo]) == 0
    log = EffectLog.from_saver(saver)
    [lost] = log.list(tool="lose", thread_id="damaged")
    assert [e.unreadable for e in log.history(lost.effect_id)] == [None, why]
    assert lost.effect_id in why
    assert main(["effects", "show", lost.effect_id, "--database", conninfo]) == 0
    assert "is none that is known" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["state = 'molten'", "asked = '{{NULL}}'"])
def test_a_call_is_told_that_the_row_of_its_effect_is_damaged(
    saver: DurableSaver, conninfo: str, change: str
) -> None:
    log = EffectLog.from_saver(saver)
    with log.effect("send", key="k") as e:
        e.issue()  # and whether it was sent is not known
    allow_any_state(conninfo)
    damage(conninfo, f"UPDATE {{s}}.effects SET {change} WHERE tool = 'send'")
    [damaged] = log.list(tool="send")
    with pytest.raises(CheckpointCorrupted, match=damaged.effect_id), log.effect("send", key="k"):
        pytest.fail("it ran again")
    assert change.split()[0] in str(damaged.unreadable)


@pytest.mark.parametrize("change", ["result = NULL", "result_type = NULL", "result_type = 'tuple:null'"])
def test_a_result_that_is_gone_is_not_replayed_as_none(
    saver: DurableSaver, conninfo: str, change: str
) -> None:
    log = EffectLog.from_saver(saver)
    with log.effect("send", key="k") as e:
        e.complete("sent")
    damage(conninfo, f"UPDATE {{s}}.effects SET {change} WHERE tool = 'send'")
    with pytest.raises(CheckpointCorrupted, match="'send'"), log.effect("send", key="k"):
        pytest.fail("it was replayed")


def test_a_question_that_names_a_damaged_effect_says_so(saver: DurableSaver, conninfo: str) -> None:
    [lost] = EffectLog.from_saver(saver).list(tool="lose", thread_id="damaged")
    [waiting] = pending_interrupts(saver, thread_id="damaged")
    at: Any = config_of("damaged")
    at["configurable"] |= {"checkpoint_ns": "", "checkpoint_id": waiting.checkpoint_id}
    saver.put_writes(at, [("__interrupt__", [Interrupt(value={"effect": lost.effect_id}, id="i")])], "task 2")
    damage(
        conninfo, "UPDATE {s}.effects SET asked = '{{NULL}}' WHERE thread_id = 'damaged' AND tool = 'lose'"
    )
    found = {w.interrupt_id: w.unreadable for w in pending_interrupts(saver)}
    assert len(found) == 4
    assert lost.effect_id in str(found.pop("i"))
    assert set(found.values()) == {None}


# --- the loader ---


def test_times_that_python_holds_are_as_they_were(saver: DurableSaver, conninfo: str) -> None:
    log = EffectLog.from_saver(saver)
    for time in (
        datetime(1, 1, 1, tzinfo=timezone.utc),
        datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc),
    ):
        damage(conninfo, "UPDATE {s}.effects SET ended_at = %s WHERE thread_id = 'damaged'", [time])
        found = log.list(thread_id="damaged")
        assert {(e.ended_at, e.unreadable) for e in found} == {(time, None)}
