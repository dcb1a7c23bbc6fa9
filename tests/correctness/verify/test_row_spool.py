"""Rows of side tables in scratch files: each partition has its rows in order, in any number and order of arrival."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from lockstep.model.position import TopicIdPartition
from lockstep.model.record import Record
from lockstep.verify import row_spool
from lockstep.verify.ledger import (
    LedgerRange,
    OffsetGap,
    StoredRanges,
    find_first_provable,
    find_first_with_state,
    make_chains,
)
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.row_spool import BY_BATCH, BY_OFFSET, PartitionRows, RowSpool
from lockstep.verify.side_tables import BLOCK_ROWS, CRASHES_WORKER, ExpectedSideRows
from tests.support.gate_feed import Content
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COUNTS = ("messages", "rows", "accepted_without_row", "skipped", "repeats", "gaps", "dropped", "quarantined")
BATCHES = 1_000


def row(batch: int, partition: int = 0, *, start: int = -1, until: int = -1, **changes: object) -> LedgerRange:
    begin = (batch - 1) * 10 if start < 0 else start
    place = {"topic_id": "id", "topic": "t", "partition": partition, "suspended_from": 0, "holes": []}
    read = {"generation": 1, "batch": batch, "start": begin, "until": begin + 10 if until < 0 else until}
    made = msgspec.convert(place | read | dict.fromkeys(COUNTS, 0), LedgerRange)
    return msgspec.structs.replace(made, **changes)


def spool(scratch: Path, tables: Iterable[Iterable[LedgerRange]]) -> dict[TopicIdPartition, StoredRanges]:
    spooled = RowSpool(scratch, "ledger", BY_BATCH)
    for rows in tables:
        spooled.add(pa.Table.from_pylist([msgspec.to_builtins(each) for each in rows]))
    return {key: StoredRanges(rows) for key, rows in spooled.finish().items()}


@pytest.mark.parametrize("is_in_order", first_usual(1, [False, True]))
@pytest.mark.parametrize("flush", [10_000, 10**9])
def test_rows_of_many_files_come_back_by_partition_in_order_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: int, is_in_order: bool
) -> None:
    monkeypatch.setattr(row_spool, "FLUSH_BYTES", flush)
    monkeypatch.setattr(row_spool, "SMALL_TABLES", 7)
    numbers = range(1, BATCHES + 1) if is_in_order else range(BATCHES, 0, -1)
    found = spool(tmp_path, ([row(number, partition) for partition in (2, 0, 1)] for number in numbers))
    assert sorted(found) == [TopicIdPartition("id", 0), TopicIdPartition("id", 1), TopicIdPartition("id", 2)]
    for (_, partition), ranges in found.items():
        expected = [row(number, partition) for number in range(1, BATCHES + 1)]
        assert list(ranges) == expected
        assert [ranges[at] for at in range(BATCHES)] == expected
        assert [ranges[at] for at in reversed(range(BATCHES))] == expected[::-1]
        assert (ranges[-1], ranges[3:5], len(ranges)) == (expected[-1], expected[3:5], BATCHES)
    assert list(make_chains(found, violations := Violations())) == sorted(found)
    assert list(violations.listed) == []


def test_a_walk_makes_a_few_ranges_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ranges,) = spool(tmp_path, [[row(number) for number in range(1, BATCHES + 1)]]).values()
    read = ranges.rows.read
    made = list[int]()

    def count(first: int, until: int) -> list[dict[str, object]]:
        found = read(first, until)
        made.append(len(found))
        return found

    monkeypatch.setattr(ranges.rows, "read", count)
    for at in range(1, BATCHES):
        assert ranges[at].start == ranges[at - 1].until
    assert max(made) <= 128
    assert sum(made) <= BATCHES + 2 * 128


def test_rows_of_an_older_release_lack_columns(tmp_path: Path) -> None:
    old = {name: value for name, value in msgspec.to_builtins(row(1)).items() if name not in {"erased", "joined_at"}}
    spooled = RowSpool(tmp_path, "ledger", BY_BATCH)
    for each in (old, msgspec.to_builtins(row(2))):
        spooled.add(pa.Table.from_pylist([each]))
    (rows,) = spooled.finish().values()
    assert list(StoredRanges(rows)) == [row(1), row(2)]
    assert rows.read_numbers("joined_at").tolist() == [0, 0]
    assert rows.find_rows_with("erased").tolist() == []


def test_ranges_that_do_not_join_are_named(tmp_path: Path) -> None:
    rows = [row(1), row(2, start=12), row(3, start=15), row(3, start=25), row(4, start=35, until=30)]
    violations = Violations()
    make_chains(spool(tmp_path, [rows]), violations)
    assert [each.kind for each in violations.listed] == [
        ViolationKind.RANGE_GAP,
        ViolationKind.RANGE_OVERLAP,
        ViolationKind.LEDGER_ROW_DOUBLED,
        ViolationKind.RANGE_OVERLAP,
    ]


def test_where_a_proof_may_begin(tmp_path: Path) -> None:
    expired = [OffsetGap(20, 25, "expired"), OffsetGap(27, 28, "marker")]
    rows = [row(1), row(2, holes=[OffsetGap(12, 13, "marker")]), row(3, holes=expired), row(4, start=30, until=30)]
    rows.append(row(5, start=30))
    (chain,) = make_chains(spool(tmp_path, [rows]), Violations()).values()
    assert chain.expired == (rows[2],)
    assert [find_first_provable(chain.ranges, first) for first in (0, 10, 25, 26, 40)] == [0, 1, 2, 3, 5]
    assert find_first_with_state(chain.ranges, 1, 3) == 3
    assert (chain.end_of(0), chain.end_of(2), chain.end_of(9)) == ((0, 0), (20, 0), (40, 0))


def spool_quarantine(scratch: Path, *offsets: tuple[int, int], partition: int = 0) -> PartitionRows:
    """Spool quarantine rows by batch and offset, in a file each."""
    spooled = RowSpool(scratch, "quarantine", BY_OFFSET)
    for batch, offset in offsets:
        found = CRASHES_WORKER if offset == 7 else "2"
        kept = {"topic": "t", "key": b"s", "value": b"%d" % offset, "value_bytes": len(b"%d" % offset), "headers": []}
        row = {"topic_id": "id", "partition": partition, "batch": batch, "offset": offset, "session": None}
        at = {"cause": "undecodable", "expected": "1", "found": found, "timestamp": datetime(1970, 1, 1, tzinfo=UTC)}
        spooled.add(pa.Table.from_pylist([row | kept | at]))
    (rows,) = spooled.finish().values()
    return rows


def a_message(offset: int, value: bytes) -> Record:
    return Record(topic="t", topic_id="id", partition=0, offset=offset, source=Content(value))


@pytest.mark.parametrize("flush", [1, 10**9])
def test_rows_of_the_quarantine_are_found_by_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flush: int
) -> None:
    """A held-back message is in a later batch than its successors; another message is there twice."""
    monkeypatch.setattr(row_spool, "FLUSH_BYTES", flush)
    rows = spool_quarantine(tmp_path, (1, 5), (2, 7), (2, 3), (3, 5), (3, 9))
    violations = Violations()
    place = ViolationPlace("t", "id", 0)
    kept = ExpectedSideRows(place, rows, violations)
    assert [(each.kind, each.offset, each.found) for each in violations.listed] == [
        (ViolationKind.QUARANTINE_DOUBLED, 5, "again in batch 3")
    ]
    assert [offset for offset in range(12) if kept.holds(offset)] == [3, 5, 7, 9]
    assert [offset for offset in range(12) if kept.is_undecoded(a_message(offset, b""))] == [7]
    assert [kept.count(batch) for batch in range(1, 5)] == [1, 2, 2, 0]
    assert kept.outside(range(4, 9)) == [3, 9]
    kept.expect(a_message(9, b"9"), "undecodable", None, 3)
    kept.expect(a_message(9, b"9"), "undecodable", None, 2)
    kept.expect(a_message(3, b"4"), "undecodable", None, 2)
    kept.expect(a_message(4, b"4"), "undecodable", None, 2)
    kept.refuse(7, with_rows=True)
    assert [(each.kind, each.offset, each.found) for each in [*violations.listed][1:]] == [
        (ViolationKind.QUARANTINE_CHANGED, 9, "3"),
        (ViolationKind.QUARANTINE_CHANGED, 3, "b'3'"),
        (ViolationKind.QUARANTINE_MISSING, 4, "not there"),
        (ViolationKind.QUARANTINE_AND_ROWS, 7, "there as 'undecodable'"),
    ]


def test_a_proof_holds_a_few_rows_of_the_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spool_quarantine(tmp_path, *((1 + number // 10, number) for number in range(BATCHES)))
    read = rows.read
    made = list[int]()

    def count(first: int, until: int) -> list[dict[str, object]]:
        found = read(first, until)
        made.append(len(found))
        return found

    monkeypatch.setattr(rows, "read", count)
    kept = ExpectedSideRows(ViolationPlace("t", "id", 0), rows, violations := Violations())
    for offset in range(BATCHES):
        kept.expect(a_message(offset, b"%d" % offset), "undecodable", None, 1 + offset // 10)
    assert (list(violations.listed), kept.compared) == ([], BATCHES)
    assert (max(made), sum(made)) == (BLOCK_ROWS, BATCHES)
