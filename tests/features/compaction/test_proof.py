"""The proof of a compaction: its content, the join of partial proofs, and its message for a difference."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.features.compaction.proof import ProofDiffers, RowProof, Span, compare_proofs, make_proof
from lockstep.table.row_digest import digest_rows
from lockstep.table.row_order import RowPlace, find_segments
from tests.features.compaction.test_rewrite import rows_at
from tests.support.stream_table import Identity

PLACES: list[Identity] = [
    ("a", 0, 3, 0),
    ("a", 0, 3, 1),
    ("a", 0, 9, 0),
    ("a", 1, 5, 2),
    ("b", 0, 1, 0),
    ("b", 0, 2, 0),
]
SPANS = {
    ("a", 0): Span(3, RowPlace(3, 0), RowPlace(9, 0)),
    ("a", 1): Span(1, RowPlace(5, 2), RowPlace(5, 2)),
    ("b", 0): Span(2, RowPlace(1, 0), RowPlace(2, 0)),
}


def proof_of(places: list[Identity]) -> RowProof:
    rows = rows_at(places)
    return make_proof(rows, find_segments(rows))


def test_it_holds_rows_and_the_first_and_last_row_of_each_partition() -> None:
    assert (proof_of(PLACES).rows, proof_of(PLACES).spans) == (6, SPANS)


@pytest.mark.parametrize("cut", range(1, len(PLACES)))
def test_the_proofs_of_two_parts_are_together_that_of_the_whole_in_either_order(cut: int) -> None:
    first = proof_of(PLACES[:cut])
    second = proof_of(PLACES[cut:])
    whole = proof_of(PLACES)
    assert first.joined(second) == whole
    assert second.joined(first) == whole
    assert RowProof().joined(whole) == whole


@pytest.mark.parametrize(
    ("at", "place", "named"),
    [
        (0, ("a", 0, 2, 0), r"topic id a, partition 0: .*emit_offset=3.* became .*emit_offset=2"),
        (2, ("a", 0, 10, 0), r"topic id a, partition 0: .*emit_offset=9.* became .*emit_offset=10"),
        (3, ("a", 2, 5, 2), r"topic id a, partition 1: .* became None"),
    ],
)
def test_a_row_at_another_place_is_named_by_its_partition(at: int, place: Identity, named: str) -> None:
    moved = [*PLACES[:at], place, *PLACES[at + 1 :]]
    with pytest.raises(ProofDiffers, match=named):
        compare_proofs(proof_of(PLACES), proof_of(moved))


def test_a_place_in_the_middle_of_a_partition_is_told_by_the_digest() -> None:
    with pytest.raises(ProofDiffers, match=r"digest [0-9a-f]{16} became"):
        compare_proofs(proof_of(PLACES), proof_of([PLACES[0], ("a", 0, 4, 1), *PLACES[2:]]))


MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
NULL = 0xD6E8FEB86659FD93
COLUMNS: dict[str, pa.DataType] = {
    "whole": pa.int64(),
    "small": pa.int32(),
    "value": pa.float64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "flag": pa.bool_(),
    "at": pa.timestamp("us", tz="UTC"),
    "day": pa.date32(),
    "price": pa.decimal128(30, 4),
    "fee": pa.decimal128(5, 2),
    "tags": pa.list_(pa.string()),
    "place": pa.struct([("room", pa.string()), ("floor", pa.int64())]),
    "counts": pa.map_(pa.string(), pa.int64()),
}
SCHEMA = pa.schema(COLUMNS)


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def sequence(elements: Iterable[int]) -> int:
    numbers = list(elements)
    parts = (mix((element + i * GOLDEN) & MASK) for i, element in enumerate(numbers, 1))
    return mix((len(numbers) + sum(parts)) & MASK)


def number(value: Any, kind: Any) -> int:  # noqa: C901, PLR0911  # one case per type
    """Compute the definition in plain Python."""
    match value:
        case None:
            return NULL
        case bool():
            return int(value)
        case int():
            return value & MASK
        case float():
            (bits,) = struct.unpack("<Q", struct.pack("<d", value))
            return int(bits)
        case str():
            return sequence(value.encode())
        case bytes():
            return sequence(value)
        case datetime():
            return (value - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution) & MASK
        case date():
            return (value - date(1970, 1, 1)).days & MASK
        case Decimal():
            unscaled = int(value.scaleb(kind.scale)) & (1 << 128) - 1
            return sequence([unscaled & MASK, unscaled >> 64])
        case dict():
            return sequence(number(value[field.name], field.type) for field in kind)
        case _ if pa.types.is_map(kind):
            pairs = ((number(key, kind.key_type), number(held, kind.item_type)) for key, held in value)
            return sequence(map(sequence, pairs))
        case _:
            return sequence(number(each, kind.value_type) for each in value)


def expected_digest(rows: list[dict[str, Any]]) -> int:
    hashes = (sequence(number(row[field.name], field.type) for field in SCHEMA) for row in rows)
    return sum(hashes) & MASK


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "whole": optional(INTEGERS),
            "small": optional(st.integers(-(2**31), 2**31 - 1)),
            "value": optional(st.floats(allow_nan=False)),
            "text": optional(TEXTS),
            "raw": optional(st.binary(max_size=4)),
            "flag": optional(st.booleans()),
            "at": optional(st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC))),  # noqa: DTZ001  # a bound
            "day": optional(st.dates()),
            "price": optional(st.decimals(-(10**20), 10**20, places=4)),
            "fee": optional(st.decimals(-999, 999, places=2)),
            "tags": optional(st.lists(optional(TEXTS), max_size=3)),
            "place": optional(st.fixed_dictionaries({"room": optional(TEXTS), "floor": optional(INTEGERS)})),
            "counts": optional(st.lists(st.tuples(TEXTS, optional(INTEGERS)), max_size=2)),
        }
    ),
    max_size=12,
)


@given(ROWS)
def test_it_is_what_its_definition_says(rows: list[dict[str, Any]]) -> None:
    assert expected_digest(rows) == digest_rows(pa.Table.from_pylist(rows, SCHEMA))


@given(ROWS, st.integers(0, 12), st.randoms())
def test_it_is_the_same_however_rows_are_split_and_ordered(
    rows: list[dict[str, Any]], cut: int, dice: random.Random
) -> None:
    whole = pa.Table.from_pylist(rows, SCHEMA)
    dice.shuffle(rows)
    parts = pa.Table.from_pylist(rows, SCHEMA)
    assert digest_rows(whole) == (digest_rows(parts.slice(0, cut)) + digest_rows(parts.slice(cut))) % 2**64


SOME_TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=40)


@given(first=SOME_TEXTS, second=SOME_TEXTS)
def test_a_dictionary_counts_as_its_values(first: list[str | None], second: list[str | None]) -> None:
    parts = [
        pa.table({"n": pa.array(range(len(t)), pa.int64()), "t": pa.array(t, pa.string())}) for t in (first, second)
    ]
    encoded = [part.set_column(1, "t", part.column("t").dictionary_encode()) for part in parts]
    whole = pa.concat_tables(encoded)
    assert digest_rows(whole) == digest_rows(whole.combine_chunks()) == digest_rows(pa.concat_tables(parts))


def test_rows_past_one_block_count_as_well() -> None:
    numbers = pa.table({"n": range(40_000), "t": [f"text {n % 7}" for n in range(40_000)]})
    parts = [digest_rows(numbers.slice(start, 10_000)) for start in range(0, 40_000, 10_000)]
    assert digest_rows(numbers) == sum(parts) % 2**64
    assert digest_rows(numbers.set_column(1, "t", numbers["t"].dictionary_encode())) == digest_rows(numbers)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": [1, 2], "b": [1, 2]}, {"a": [2, 1], "b": [1, 2]}),
        ({"a": [1], "b": [2]}, {"a": [2], "b": [1]}),
        ({"a": [1, 1]}, {"a": [1]}),
        ({"a": [None]}, {"a": [0]}),
        ({"a": [""]}, {"a": [None]}),
        ({"a": [0.0]}, {"a": [-0.0]}),
        ({"a": ["ab"], "b": ["c"]}, {"a": ["a"], "b": ["bc"]}),
        ({"a": [[1], [2]]}, {"a": [[1, 2], []]}),
        ({"a": [-1.5], "b": [2.5]}, {"a": [1.5], "b": [-2.5]}),
    ],
)
def test_it_sees_values_that_moved_or_changed(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> None:
    types = pa.table(before).schema if None not in before["a"] else pa.table(after).schema
    assert digest_rows(pa.table(before, schema=types)) != digest_rows(pa.table(after, schema=types))


def test_a_type_without_a_definition_is_refused() -> None:
    with pytest.raises(TypeError, match="time64"):
        digest_rows(pa.table({"t": pa.array([1], pa.time64("us"))}))
