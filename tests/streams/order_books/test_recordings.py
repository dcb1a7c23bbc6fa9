"""The content of the recordings, and the two correct ways to load them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.recordings import (
    Recorded,
    RecordedKind,
    RecordingError,
    Sent,
    read_recorded_books,
    read_recorded_days,
    to_received,
    to_sent,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BOOKS = ("cm_btcusd_perp", "spot_btcusdt", "spot_ethusdt")
# For each file: differences kept, differences dropped as stale, and tickers.
COUNTS = {
    "cm_btcusd_perp": ((26_824, 23, 6_562), (6_745, 0, 3_216)),
    "spot_btcusdt": ((3_449, 2, 2_896), (1_200, 0, 1_129)),
    "spot_ethusdt": ((3_432, 2, 2_674), (1_198, 0, 1_095)),
}


def test_three_books_are_recorded_over_two_days(recordings: Path) -> None:
    assert read_recorded_books(recordings) == BOOKS
    for book in BOOKS:
        days = [path.name for path in read_recorded_days(recordings, book)]
        assert [f"{book}_20240808.gz", f"{book}_20240809.gz"] == days


@pytest.mark.parametrize("book", BOOKS)
def test_each_file_holds_what_its_provenance_says(book: str, recordings: Path) -> None:
    found = []
    for path in read_recorded_days(recordings, book):
        sent = to_sent([path])
        kept = sum(message.kind is RecordedKind.DIFFERENCE for message in sent.messages)
        found.append((kept, len(sent.stale), len(sent.tickers)))
    assert COUNTS[book] == tuple(found)


@pytest.mark.parametrize("book", BOOKS)
def test_a_good_producer_sends_the_one_snapshot_first(book: str, both_days: Callable[[str], Sent]) -> None:
    kinds = [message.kind for message in both_days(book).messages]
    assert kinds[0] is RecordedKind.SNAPSHOT
    assert set(kinds[1:]) == {RecordedKind.DIFFERENCE}


@pytest.mark.parametrize("book", BOOKS)
def test_every_difference_links_to_the_one_before_over_midnight(book: str, both_days: Callable[[str], Sent]) -> None:
    differences = both_days(book).messages[1:]
    broken = [later for earlier, later in pairwise(differences) if link(later) != earlier.last_id]
    assert broken == []


@pytest.mark.parametrize("book", BOOKS)
def test_the_first_kept_difference_reaches_over_the_snapshot(book: str, both_days: Callable[[str], Sent]) -> None:
    snapshot, first = both_days(book).messages[:2]
    wanted = snapshot.last_id + (first.previous_id is None)
    assert first.first_id is not None
    assert first.first_id <= wanted <= first.last_id


@pytest.mark.parametrize(("book", "before", "needed"), [(BOOKS[0], 25, 2), (BOOKS[1], 3, 1), (BOOKS[2], 2, 0)])
def test_as_received_the_snapshot_comes_after_differences_it_does_not_contain(
    book: str, before: int, needed: int, recordings: Path, both_days: Callable[[str], Sent]
) -> None:
    received = to_received(read_recorded_days(recordings, book))
    place = [message.kind for message in received].index(RecordedKind.SNAPSHOT)
    early = set(received[:place])
    assert before == place
    assert needed == len(early.intersection(both_days(book).messages))
    assert before - needed == len(early.intersection(both_days(book).stale))


@pytest.mark.parametrize("book", BOOKS)
def test_both_ways_load_the_same_messages(book: str, recordings: Path, both_days: Callable[[str], Sent]) -> None:
    received = to_received(read_recorded_days(recordings, book))
    sent = both_days(book)
    assert sorted(received, key=repr) == sorted(sent.messages + sent.stale, key=repr)


@pytest.mark.parametrize("book", BOOKS)
def test_the_second_day_alone_has_no_snapshot_and_goes_on_where_the_first_ended(
    book: str, recordings: Path, both_days: Callable[[str], Sent]
) -> None:
    first, second = (to_sent([path]).messages for path in read_recorded_days(recordings, book))
    assert {RecordedKind.DIFFERENCE} == {message.kind for message in second}
    assert first + second == both_days(book).messages


def test_a_message_keeps_its_bytes_its_session_and_its_receive_time(recordings: Path) -> None:
    path = read_recorded_days(recordings, "cm_btcusd_perp")[0]
    with gzip.open(path) as recording:
        line = recording.readline()
    message = to_received([path])[0]
    assert line == b"%d %s\n" % (message.received_ns, message.value)
    assert message.key == b"cm_btcusd_perp"
    assert message.timestamp_ms == 1_723_161_256_172


@pytest.mark.parametrize("line", [b"no time {}\n", b"5 {\n", b'5 {"stream":"x@news"}\n', b"5\n"])
def test_a_line_that_is_no_recorded_message_is_refused_with_its_place(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spot_x_20240808.gz"
    path.write_bytes(gzip.compress(b'5 {"lastUpdateId":1}\n' + line))
    with pytest.raises(RecordingError, match="line 2: not a recorded message") as refusal:
        to_sent([path])
    assert (path, 2) == (refusal.value.path, refusal.value.line)


def test_a_second_snapshot_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spot_x_20240808.gz"
    path.write_bytes(gzip.compress(b'5 {"lastUpdateId":1}\n' * 2))
    with pytest.raises(RecordingError, match="2 snapshots in one recording"):
        to_sent([path])


def test_extracting_an_extract_changes_nothing(recordings: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    made = tmp_path / "made"
    source.mkdir()
    for path in (recordings / "PROVENANCE.txt", *read_recorded_days(recordings, "spot_ethusdt")):
        shutil.copy(path, source)
    subprocess.run([sys.executable, recordings.parent / "extract.py", source, made], check=True)
    for path in source.glob("*.gz"):
        assert gzip.decompress(path.read_bytes()) == gzip.decompress((made / path.name).read_bytes())


def link(difference: Recorded) -> int:
    """Return the `u` that the previous difference must have."""
    assert difference.first_id is not None
    return difference.first_id - 1 if difference.previous_id is None else difference.previous_id
