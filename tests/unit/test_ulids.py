"""ULIDs derived from ids: without loss, in order."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import UUID, uuid6
from ulid import ULID

from langgraph_durable._checkpoints.ulids import derive_ulid, format_ulid, parse_ulid

TICKS_1582_TO_1970 = 0x01B21DD213814000


@st.composite
def uuid6s(draw: st.DrawFn) -> UUID:
    ticks = draw(st.integers(TICKS_1582_TO_1970, 2**60 - 1))
    rest = draw(st.integers(0, 2**62 - 1))
    return UUID(int=ticks >> 12 << 80 | (ticks & 0xFFF) << 64 | rest, version=6)


@given(one=uuid6s(), other=uuid6s())
def test_uuid6_keep_their_order_and_stay_distinct(one: UUID, other: UUID) -> None:
    first, second = derive_ulid(str(one)), derive_ulid(str(other))
    assert first is not None
    assert second is not None
    assert (one < other) == (first < second)
    assert (one == other) == (first == second)


@given(one=uuid6s())
def test_a_derived_ulid_has_the_ids_millisecond(one: UUID) -> None:
    ulid = derive_ulid(str(one))
    assert ulid is not None
    assert ulid.int >> 80 == (one.time - TICKS_1582_TO_1970) // 10_000
    assert ulid.int & 0b1111 == 0  # so that a successor is not another id's ULID
    assert parse_ulid(format_ulid(ulid)) == ulid


def test_ids_of_the_runtime_grow() -> None:
    ids = [uuid6(clock_seq=step) for step in range(-2, 500)]
    ulids = [derive_ulid(str(i)) for i in ids]
    assert ulids == sorted(ulids, key=str)
    assert len(set(ulids)) == len(ids)


@given(st.integers(0, 2**128 - 1))
def test_a_ulid_is_its_own_place(number: int) -> None:
    text = str(ULID.from_int(number))
    place = derive_ulid(text)
    assert place is not None
    assert place.int == number
    assert format_ulid(place) == text


def test_uuid7_keep_their_bits() -> None:
    seven = "0193a1b2-c3d4-7abc-8def-0123456789ab"
    assert derive_ulid(seven) == uuid.UUID(seven)


@given(st.text(max_size=40))
def test_other_ids_hold_no_time(text: str) -> None:
    place = derive_ulid(text)
    assert place is None or len(text) >= 26


def test_other_uuids_hold_no_time() -> None:
    before_1970 = UUID(int=TICKS_1582_TO_1970 // 2 >> 12 << 80, version=6)
    for other in (
        str(uuid.uuid4()),
        str(uuid.uuid1()),
        str(uuid.UUID(int=0)),
        str(before_1970),
        "8" + "0" * 25,
    ):
        assert derive_ulid(other) is None
