"""The recording is as documented: complete numbers, ten of them late, and offsets out of order."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

from tests.streams.dydx_books.plain_fold import fold, wrong
from tests.streams.dydx_books.recording import PATH, as_numbered, as_received

NUMBERS = range(4_733)
LATE = (19, 12, 13, 14, 11, 15, 16, 17, 18, 20)
WRONG = (("ETH-USD", "asks", "4217.3"), ("UNI-USD", "asks", "25.063"), ("UNI-USD", "bids", "25.037"))
"""Levels that are wrong at the end if the last received level is kept."""


def test_it_is_one_connection_of_4733_messages_of_which_ten_come_late() -> None:
    numbers = [message.number for message in as_received()]
    newest = -1
    late = []
    for number in numbers:
        if number < newest:
            late.append(number)
        newest = max(newest, number)
    assert sorted(numbers) == list(NUMBERS)
    assert tuple(late) == LATE
    kinds = Counter(json.loads(message.value)["type"] for message in as_received())
    assert kinds == {"connected": 1, "subscribed": 20, "channel_data": 4_712}


def test_three_levels_end_wrong_for_who_takes_the_last_one_in_whatever_order() -> None:
    """Messages are not in the order of the exchange's offsets, even by their numbers."""
    received, numbered = [[message.value for message in each] for each in (as_received(), as_numbered())]
    right = fold(received, newest=True).levels
    assert len(right) == 3_104
    assert fold(numbered, newest=True).levels == right
    for values in (received, numbered):
        assert tuple(wrong(fold(values, newest=False).levels, right)) == WRONG


def test_its_provenance_names_it() -> None:
    packed = PATH.read_bytes()
    told = (PATH.parent / "PROVENANCE.txt").read_text(encoding="utf-8")
    assert f"{PATH.name}\n  {len(packed)} bytes, sha256 {hashlib.sha256(packed).hexdigest()}\n" in told
