"""Positions after a promotion: topics that stay retired, and messages missing in the archive. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.features.history.promote import keep_retired, list_unarchived
from lockstep.model.position import TopicIdPartition
from lockstep.table.archive import ArchivedEnd
from lockstep.table.positions import DELETED, LedgerStamp, make_blank_row

ROW = make_blank_row(
    LedgerStamp(
        generation=1,
        batch=1,
        epoch=1,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
        batch_seconds=0.0,
        restart_cause=None,
    )
)
OFFSETS = st.integers(0, 6)
KEYS = st.integers(0, 3).map(lambda number: TopicIdPartition("id", number))


@given(
    st.dictionaries(KEYS, OFFSETS),
    st.dictionaries(KEYS, st.tuples(OFFSETS, OFFSETS, st.booleans())),
    st.dictionaries(KEYS, st.none() | OFFSETS),
)
@example({}, {TopicIdPartition("id", 0): (0, 4, False)}, {})
@example({TopicIdPartition("id", 0): 0}, {TopicIdPartition("id", 0): (0, 4, False)}, {})
@example({TopicIdPartition("id", 0): 2}, {TopicIdPartition("id", 0): (0, 6, False)}, {TopicIdPartition("id", 0): 4})
def test_the_archive_would_lack_messages_that_the_stream_has_neither_read_nor_archived(
    read: dict[TopicIdPartition, int],
    shadow: dict[TopicIdPartition, tuple[int, int, bool]],
    archived: dict[TopicIdPartition, int | None],
) -> None:
    """Compared with a plain table: each offset that the shadow has read."""
    reached = {
        key: replace(ROW, joined_at=first, until=max(first, until), retired=gone, ending=DELETED if gone else None)
        for key, (first, until, gone) in shadow.items()
    }
    newest = {key: replace(ROW, until=until) for key, until in read.items()}
    ends = {key: ArchivedEnd(until, is_gone=False) for key, until in archived.items()}
    found = {id(each.row): (each.start, each.offsets) for each in list_unarchived(newest, reached, ends)}
    for key, row in reached.items():
        offsets = set(range(row.joined_at, row.until)) - set(range(max(read.get(key, 0), archived.get(key) or 0)))
        lacking = set[int]() if row.is_gone else offsets
        first, count = found.pop(id(row), (0, 0))
        assert set(range(first, first + count)) == lacking
    assert not found


@given(shadow_at=OFFSETS, until=OFFSETS, retired=st.booleans(), deleted=st.booleans(), archived=st.none() | OFFSETS)
@example(shadow_at=4, until=6, retired=True, deleted=True, archived=None)
def test_a_topic_that_the_stream_has_retired_stays_retired_if_it_is_gone_or_had_no_message(
    *, shadow_at: int, until: int, retired: bool, deleted: bool, archived: int | None
) -> None:
    now = replace(ROW, until=until, retired=retired, ending=DELETED if deleted else None, archived_until=1)
    end = None if archived is None else ArchivedEnd(archived, is_gone=False)
    kept = keep_retired(replace(ROW, until=shadow_at, archived_until=2), now, end)
    stays = retired and (deleted or shadow_at == until)
    assert (kept.until, kept.archived_until, kept.retired) == (shadow_at, archived, stays)
    assert kept.ending == (DELETED if stays and deleted else None)
    assert keep_retired(ROW, None, end) == replace(ROW, archived_until=archived)
