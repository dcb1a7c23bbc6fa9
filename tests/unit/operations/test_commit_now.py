"""A commit on an operator's request waits for partitions that are read, and for no others."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from lockstep.declare.options import FileSize
from lockstep.model.position import TopicIdPartition
from lockstep.operations import commit_now as commit
from lockstep.operations.commit_now import CommittedNow, commit_now, find_awaited
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import Settings
from lockstep.table.head import HaltedTopic, Head
from lockstep.table.positions import LedgerStamp, make_blank_row
from tests.support.adding_stream import adding
from tests.support.cluster_views import topic, view

if TYPE_CHECKING:
    from pathlib import Path

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
HEAD = Head(stream="adding", cluster_id="cluster", epoch=1, batch=1)
KEYS = st.builds(TopicIdPartition, st.sampled_from("abc"), st.integers(0, 1))


@given(
    st.dictionaries(KEYS, st.integers(0, 4)),
    st.dictionaries(KEYS, st.tuples(st.integers(0, 4), st.booleans())),
    st.sets(st.sampled_from("abc")),
)
@example({TopicIdPartition("a", 0): 2}, {TopicIdPartition("a", 0): (1, True)}, set())
@example({TopicIdPartition("a", 0): 2}, {TopicIdPartition("a", 0): (1, False)}, {"a"})
def test_messages_of_topics_that_are_read_are_awaited(
    ends: dict[TopicIdPartition, int], rows: dict[TopicIdPartition, tuple[int, bool]], halted: set[str]
) -> None:
    head = replace_struct(HEAD, halted_topics=tuple(HaltedTopic(name, name, 1, ()) for name in halted))
    positions = {key: replace_struct(ROW, until=at, retired=gone) for key, (at, gone) in rows.items()}
    awaited = find_awaited(ends, positions, head)
    for key, until in ends.items():
        at, gone = rows.get(key, (until, True))
        waits = at < until and not gone and key.topic_id not in halted
        assert awaited.get(key) == (until if waits else None)
    assert awaited.keys() <= ends.keys()


def test_messages_of_a_topic_that_the_pattern_leaves_out_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run reads them: a command that awaits them would wait for its whole timeout, and fail."""
    monkeypatch.setattr(commit, "is_writer_alive", lambda *_: True)
    stream = replace(adding("a"), trigger=FileSize("1 MB"))
    handle = StreamHandle(stream, Settings(table_root=tmp_path))
    rows = {TopicIdPartition(name, 0): replace_struct(ROW, topic=name, topic_id=name) for name in "ab"}
    ends = {TopicIdPartition("a", 0): (0, 0, 0), TopicIdPartition("b", 0): (0, 3, 3)}
    vars(handle).update(
        head=HEAD, positions=rows, selected=frozenset("a"), view=view(topic("a", "a"), topic("b", "b"), ends=ends)
    )
    assert commit_now(handle, who="ann") == CommittedNow(stream="adding", messages=0, batch=1)
