"""The recording is as documented, and the plain fold rebuilds the exchange's books."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.recordings import Recorded, RecordedKind, RecordingError, read_checksummed_books
from tests.streams.checksummed_books.conftest import RECORDING
from tests.streams.checksummed_books.plain_fold import fold

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MESSAGES = {
    "ada_xbt": 348,
    "eth_chf": 318,
    "grt_eth": 21,
    "ksm_xbt": 336,
    "ocean_xbt": 149,
    "omg_usd": 574,
    "sc_eur": 819,
    "waves_eur": 577,
    "xbt_chf": 290,
    "xmr_usd": 847,
}


def test_each_book_begins_with_its_only_snapshot(recorded: Mapping[str, tuple[Recorded, ...]]) -> None:
    assert {book: len(messages) for book, messages in recorded.items()} == MESSAGES
    for book, messages in recorded.items():
        assert messages[0].kind is RecordedKind.SNAPSHOT
        assert Counter(message.kind for message in messages[1:]) == {RecordedKind.DIFFERENCE: MESSAGES[book] - 1}
        assert {message.key for message in messages} == {book.encode()}


def test_values_are_the_bytes_of_the_lines_and_times_their_receive_times(
    recorded: Mapping[str, tuple[Recorded, ...]],
) -> None:
    with gzip.open(RECORDING) as lines:
        told = [match.groups() for line in lines if (match := re.fullmatch(rb"([\d.]+): (\[.*\])\n", line))]
    messages = sorted((each for book in recorded.values() for each in book), key=lambda message: message.received_ns)
    assert [each.value for each in messages] == [value for _, value in told]
    assert [each.timestamp_ms for each in messages] == [int(float(time) * 1_000_000) // 1_000 for time, _ in told]


def test_every_checksum_of_the_exchange_holds_in_the_plain_fold(recorded: Mapping[str, tuple[Recorded, ...]]) -> None:
    folded = [each for messages in recorded.values() for each in fold(message.value for message in messages)]
    assert sum(each.told is not None for each in folded) == 4_269
    assert [each for each in folded if each.computed != each.told] == []


@pytest.mark.parametrize("line", ["17.5: [1, 2]", "17.5: [1, 7, 8, 9]", "soon: [1, {}, 2, 3]", "17.5: [1,"])
def test_a_line_that_is_not_of_such_a_recording_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt.gz"
    with gzip.open(path, "wt") as wrong:
        wrong.write('wss://somewhere <- 1.0: {"event":"subscribe"}\n17.0: {"event":"heartbeat"}\n' + line + "\n")
    with pytest.raises(RecordingError, match=r"wrong\.txt\.gz, line 3: not a recorded book"):
        read_checksummed_books(path)
