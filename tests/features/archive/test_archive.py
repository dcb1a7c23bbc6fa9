"""The archive without a broker: each message is stored once, unchanged, and folds like Kafka's log."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import chain, product
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver.archived_log import find_blocks
from lockstep.engine.executor.archive import ArchiveSource, encode_messages, make_rows
from lockstep.engine.executor.compiled_stream import compile_stream
from lockstep.engine.executor.task import run_bin
from lockstep.engine.protocol import BatchIdentity, PlannedRange, TaskSpec
from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.model.finding import Hole
from lockstep.model.position import Position, TopicIdPartition, TopicNamePartition
from lockstep.table.archive import (
    ArchivedBlock,
    ArchivedEnd,
    ArchiveLacks,
    WantedMessages,
    digest_rows,
    find_gap,
    make_run,
    merge_ends,
    merge_ranges,
    read_blocks,
    read_messages,
)
from lockstep.table.commit import OutputLog
from lockstep.table.ledger import read_ledger
from lockstep.testing.script import InLog
from lockstep.verify.archive import ArchiveClaim, StoredArchive, digest_claim, find_damage, read_groups
from lockstep.verify.report import ViolationKind
from tests.features.archive.archiving import (
    MOMENTS,
    TOPIC,
    make_offline,
    read_archive,
    read_values,
    run_batches,
    send,
)
from tests.support.feed import session, update
from tests.support.offline_proof import prove
from tests.support.offline_rewind import rewind
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.table.head import Head
    from tests.support.offline_stream import Offline

KEY = TopicIdPartition("id-of-t", 0)
WHERE = Position(topic=TOPIC, topic_id=KEY.topic_id, partition=0, next_offset=0)
ROOT = Path(__file__).parents[3]

BYTES = st.one_of(st.none(), st.binary(max_size=8))
HEADERS = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), BYTES), max_size=3)
MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), BYTES, BYTES, st.one_of(st.just(-1), st.integers(0, 2**62)), HEADERS), max_size=12
)
"""For each message: the count of missing offsets before it, key, value, timestamp and headers."""


def count_read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the row count of each row group read from now on."""
    read = list[int]()
    original = pq.ParquetFile.read_row_group

    def count(parquet: pq.ParquetFile, *arguments: Any, **options: Any) -> pa.Table:
        rows = original(parquet, *arguments, **options)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", count)
    return read


def test_the_proof_of_a_range_reads_the_files_of_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the files of the range are read: a month has thousands."""
    offline = make_offline(tmp_path)
    run_batches(offline, 11)
    archive = StoredArchive(offline.folders, OutputLog(offline.folders.table).base().head)
    read = count_read_rows(monkeypatch)
    for start in range(10):
        read.clear()
        messages = chain.from_iterable(map(attrgetter("messages"), archive.read(KEY, start, start + 2)))
        assert [message.offset() for message in messages] == [start, start + 1]
        assert sum(read) == 2 + 2 * (start % 2)


@given(
    places=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)), min_size=1, max_size=30),
    size=st.integers(1, 4),
)
def test_the_proof_of_a_partition_reads_the_row_groups_that_may_have_it(
    places: list[tuple[str, int]], size: int
) -> None:
    """A compacted file holds thousands of partitions in order."""
    topics, partitions = zip(*sorted(places), strict=True)
    rows = pa.table({"topic_id": list(topics), "partition": list(partitions)})
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "archive.parquet"
        pq.write_table(rows, path, row_group_size=size)
        read = count_read_rows(patch)
        for place in set(places):
            read.clear()
            groups = list(read_groups(path, TopicIdPartition(*place)))
            found = [tuple(row.values()) for row in pa.concat_tables(groups).to_pylist()]
            assert found.count(place) == places.count(place)
            assert sum(read) < places.count(place) + 3 * size  # two at its ends, one between the topics


def read_offsets(wanted: WantedMessages) -> list[int]:
    messages = chain.from_iterable(run.messages for run in read_messages(wanted))
    return [message.offset() for message in messages]


ENDS = st.tuples(st.none() | st.integers(1, 9), st.booleans())
PLACES = st.integers(0, 2).map(lambda number: TopicIdPartition("id", number))


@given(
    st.dictionaries(PLACES, ENDS),
    st.lists(st.tuples(PLACES, st.integers(1, 9), ENDS), unique_by=lambda row: row[:2]).map(tuple),
)
def test_the_archive_ends_at_the_last_offset_of_any_batch_also_of_an_undone_one(
    now: dict[TopicIdPartition, tuple[int | None, bool]],
    undone: tuple[tuple[TopicIdPartition, int, tuple[int | None, bool]], ...],
) -> None:
    """Whether a partition is gone is read from its position, else from the row of its last batch."""
    merged = merge_ends(
        {key: ArchivedEnd(*end) for key, end in now.items()},
        [(key, batch, ArchivedEnd(*end)) for key, batch, end in undone],
    )
    assert merged.keys() == now.keys() | {key for key, _, _ in undone}
    for key, end in merged.items():
        rows = sorted((batch, *found) for place, batch, found in undone if place == key)
        all_ends = [until for _, until, _ in rows] + [now[key][0] if key in now else None]
        assert (end.until or 0) == max(each or 0 for each in all_ends)
        assert end.is_gone is (now[key][1] if key in now else rows[-1][2])


def head_of(offline: Offline) -> Head:
    return OutputLog(offline.folders.table).base().head


def make_log(drawn: Sequence[tuple[int, Any, Any, int, Any]]) -> tuple[list[InLog], list[Hole], int]:
    """Return messages, the holes between them, and the end offset."""
    messages = list[InLog]()
    holes = list[Hole]()
    at = 0
    for gap, key, value, time_ms, headers in drawn:
        if gap:
            holes.append(Hole(start=at, until=at + gap, cause="aborted"))
            at += gap
        messages.append(InLog(at, key, value, time_ms, headers))
        at += 1
    return messages, holes, at


def make_table(messages: list[InLog], holes: list[Hole]) -> pa.Table:
    schema = encode_messages([InLog(0, None, None)]).schema
    encoded = pa.Table.from_batches([encode_messages(messages)] if messages else [], schema)
    return make_rows(WHERE, encoded, holes, pa.nulls(len(messages), pa.string()), 7)


@given(MESSAGES)
def test_each_message_comes_back_as_it_was(drawn: list[tuple[int, Any, Any, int, Any]]) -> None:
    messages, holes, _ = make_log(drawn)
    rows = make_table(messages, holes)
    if not rows.num_rows:
        return
    found = make_run(rows, 0, 2**62)
    assert list(found.holes) == holes
    for sent, got in zip(messages, found.messages, strict=True):
        assert (got.offset(), got.key(), got.value()) == (sent.offset(), sent.key(), sent.value())
        assert (got.timestamp(), got.headers()) == (sent.timestamp(), sent.headers())


@given(MESSAGES)
def test_two_readings_have_one_digest(drawn: list[tuple[int, Any, Any, int, Any]]) -> None:
    messages, holes, _ = make_log(drawn)
    rows = make_table(messages, holes)
    assert digest_rows(rows) == digest_claim(rows)


@given(MESSAGES, st.data())
def test_any_change_of_a_row_is_found(drawn: list[tuple[int, Any, Any, int, Any]], data: st.DataObject) -> None:
    messages, holes, until = make_log(drawn)
    rows = make_table(messages, holes)
    if not rows.num_rows:
        return
    claim = ArchiveClaim(7, 0, until, digest_rows(rows))
    assert find_damage(claim, rows) == ""
    listed = rows.to_pylist()
    at = data.draw(st.integers(0, len(listed) - 1))
    change = data.draw(st.sampled_from(("lost", "twice", "key", "value", "timestamp_ms", "headers")))
    if change == "lost":
        del listed[at]
    elif change == "twice":
        listed.insert(at, listed[at])
    elif change == "headers":
        listed[at]["headers"] = [*listed[at]["headers"], {"name": "more", "value": None}]
    else:
        listed[at][change] = -5 if change == "timestamp_ms" else b"others" + (listed[at][change] or b"")
    assert find_damage(claim, pa.Table.from_pylist(listed, schema=rows.schema))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40_000)), min_size=1, max_size=20))
def test_blocks_are_all_ranges_since_the_last_gap(drawn: list[tuple[int, int]]) -> None:
    ranges = list[tuple[int, int, int]]()
    at = 0
    for batch, (gap, size) in enumerate(drawn, 1):
        start = at + (gap if gap > 1 else 0)
        ranges.append((batch, start, start + size))
        at = start + size
    since = max(n for n, (_, start, _) in enumerate(ranges) if n == 0 or ranges[n - 1][2] != start)
    blocks = merge_ranges(ranges)
    assert (blocks[0].start, blocks[-1].until) == (ranges[since][1], at)
    for batch, start, until in ranges[since:]:
        found = find_blocks(blocks, start, until)
        assert found[0].start <= start
        assert until <= found[-1].until
        assert found[0].first_batch <= batch <= found[-1].last_batch
    assert find_blocks([ArchivedBlock(0, 5, 1, 1), ArchivedBlock(5, 9, 2, 2)], 5, 9) == [ArchivedBlock(5, 9, 2, 2)]


def test_a_batch_archives_its_messages_and_the_ledger_says_so(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 5)
    rows = read_archive(offline)
    assert [(row["offset"], row["until"], row["value"], row["key"]) for row in rows] == [
        (at, at + 1, value, b"s") for at, value in enumerate(values)
    ]
    assert {(row["topic_id"], row["topic"], row["partition"], row["cause"], row["session"]) for row in rows} == {
        (KEY.topic_id, TOPIC, 0, None, None)
    }
    assert [row["batch"] for row in rows] == [1, 1, 2, 2, 3, 3]
    claims = [(row.archived_from, row.archived_until) for row in read_ledger(offline.folders.ledger)]
    assert claims == [(0, 2), (2, 4), (4, 6)]
    assert prove(offline).status.value == "proven"


def test_a_rewind_neither_takes_back_nor_repeats_what_is_archived(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 5)
    rewind(offline, 1)
    offline.run({TOPIC: []})
    offline.run(send([update(7, a=1)]))
    assert read_values(offline) == list(enumerate([*values, update(7, a=1)]))
    assert [row.archived_from for row in read_ledger(offline.folders.ledger)] == [0, 2, 4, None, None, 6]
    assert prove(offline).status.value == "proven"


def test_an_archive_that_was_off_for_a_while_begins_again(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = session(6)
    offline.run(send(values[:2]))
    offline.of(dataclasses.replace(offline.stream, archive=None)).run(send(values[2:4]))
    offline.run(send(values[4:6]), send(values[6:]))
    assert [row["offset"] for row in read_archive(offline)] == [0, 1, 4, 5, 6]
    assert read_blocks(offline.folders, head_of(offline), {KEY: 0}) == {KEY: [ArchivedBlock(4, 7, 3, 4)]}
    assert prove(offline).status.value == "proven"


def test_the_proof_folds_what_kafka_no_longer_has(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    run_batches(offline, 7)
    report = prove(offline, first=8)
    assert report.status.value == "proven"
    assert [scope.proven_from for scope in report.scopes] == [0]


@pytest.mark.parametrize("change", ["lost", "twice", "foreign", "changed", "damaged"])
def test_an_archive_that_is_not_what_the_ledger_says_is_found(tmp_path: Path, change: str) -> None:
    offline = make_offline(tmp_path)
    run_batches(offline, 5)
    archive = offline.folders.archive
    file = min(archive.glob("*.parquet"))
    rows = pq.read_table(file)
    if change == "lost":
        rows = rows.slice(0, 1)
    elif change == "twice":
        rows = pa.concat_tables([rows, rows])
    elif change == "foreign":
        rows = rows.set_column(0, rows.schema.field(0), pa.array(["other"] * len(rows)))
    elif change == "changed":
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, rows.schema.field(at), pa.array([b"x"] * len(rows)))
    pq.write_table(rows, file)
    if change == "damaged":
        file.write_bytes(file.read_bytes()[:-20])
    report = prove(offline)
    assert {each.kind for each in report.violations} == {ViolationKind.ARCHIVE_DIFFERS}


def test_a_gap_or_a_repetition_is_never_read(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    run_batches(offline, 5)
    wanted = WantedMessages(offline.folders.archive, KEY.topic_id, 0, 1, 6, 1, 3)
    assert read_offsets(wanted) == [1, 2, 3, 4, 5]
    with pytest.raises(ArchiveLacks, match="offsets 6 to 8"):
        list(read_messages(msgspec.structs.replace(wanted, until=9)))
    with pytest.raises(ArchiveLacks, match="offsets 2 to 3"):
        list(read_messages(msgspec.structs.replace(wanted, first_batch=3, start=2)))
    rows = make_table([InLog(at, None, None) for at in (0, 1, 1, 2)], [])
    assert find_gap(rows, 0, 0) == (1, 2)


class _Silent:
    """A Kafka client that fails if it is used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_the_fold_of_the_archive_is_that_of_kafka(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 9, size=3)
    folders = offline.folders
    planned = PlannedRange(
        WHERE, len(values), archived=WantedMessages(folders.archive, KEY.topic_id, 0, 0, len(values), 1, 4)
    )
    task = TaskSpec(BatchIdentity(generation=1, epoch=1, number=1, commit_hour="2026-01-01T00"), (planned,))
    job = offline.copied(tmp_path / "again").job()
    job = msgspec.structs.replace(job, state=tmp_path / "state", table=tmp_path / "rows")
    source = ArchiveSource(_Silent(), {TopicNamePartition(TOPIC, 0): planned})
    result = run_bin(job, task, compile_stream(offline.stream, None), source)
    again = pa.concat_tables(pq.read_table(tmp_path / "rows" / file.path) for file in result.files)
    first = DeltaTable(folders.table).to_pyarrow_table().sort_by([("_offset", "ascending"), ("_row", "ascending")])
    names = [name for name in again.column_names if name != "commit_hour"]
    assert again.select(names).to_pylist() == first.select(names).to_pylist()
    assert result.ranges[0].archived is None


@pytest.mark.parametrize("moment", keep_usual(("before the commit", "between the side tables"), MOMENTS))
def test_a_process_that_dies_in_a_commit_leaves_neither_a_gap_nor_a_repetition(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-m", "tests.features.archive.archiving", str(tmp_path), moment]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    offline = make_offline(tmp_path)
    values = session(7)
    claimed = offline.claim()
    reached = max((row.until for row in claimed.known.values()), default=0)
    assert reached == (4 if moment in MOMENTS[3:] else 2)
    offline.log.append(TOPIC, [("s", value) for value in values[:reached]])
    offline.run(send(values[reached:]))
    assert read_values(offline) == list(enumerate(values))
    report = prove(offline)
    assert report.status.value == "proven", report.violations


def test_small_files_of_a_closed_hour_become_one_and_stay_readable(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = run_batches(offline, 9)
    done = compact_archive(offline)
    assert done.files_before == 5
    assert DeltaTable(offline.folders.archive).get_add_actions().num_rows == 1
    assert read_values(offline) == list(enumerate(values))
    offline.run(send([update(11, a=1)]))
    wanted = WantedMessages(offline.folders.archive, KEY.topic_id, 0, 3, 11, 2, 6)
    assert read_offsets(wanted) == list(range(3, 11))
    report = prove(offline, first=11)
    assert report.status.value == "proven", report.violations


def compact_archive(offline: Offline) -> Any:
    head = msgspec.structs.replace(head_of(offline), closed_hour="2999-01-01T00")
    return compact_side_tables(offline.folders, head)


def test_an_erased_session_leaves_offsets_without_a_message(tmp_path: Path) -> None:
    offline = make_offline(tmp_path)
    values = session(3)
    offline.run({TOPIC: list(product(("s", "gone"), values))})
    compact_archive(offline)
    request = EraseRequest(session="gone", drop_state=True)
    done = erase_session(offline.folders, request, EraseContext(offline.stream), who="ann", why="asked")
    assert done.messages == len(values)
    rows = read_archive(offline)
    assert [row["cause"] for row in rows] == [None] * len(values) + ["erased"] * len(values)
    assert {(row["key"], row["value"]) for row in rows if row["cause"]} == {(None, None)}
    for file in offline.folders.archive.glob("*.parquet"):
        assert b"gone" not in file.read_bytes()
    offline.run({TOPIC: [("s", update(5, a=1))]})
    report = prove(offline)
    assert report.status.value == "proven", report.violations
    assert read_blocks(offline.folders, head_of(offline), {KEY: 0})[KEY][0].start == 2 * len(values)
