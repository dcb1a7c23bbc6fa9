"""What is chosen for compaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.compaction.plan import COMPACTED_PREFIX, Bin, LiveFile, is_closed, plan_bins
from lockstep.table.delta_log import Head

HOURS = ("2026-01-01T00", "2026-01-01T01", "2026-01-01T02")
TARGET = 100


def head(hour: str = HOURS[2], closed: str = "") -> Head:
    return Head(stream="s", cluster_id="c", hour=hour, closed_hour=closed)


def file(name: str, size: int = 10, hour: str = HOURS[0], added_ms: int = 0) -> LiveFile:
    return LiveFile(path=f"commit_hour={hour}/{name}", size=size, rows=size, commit_hour=hour, added_ms=added_ms)


@pytest.mark.parametrize(
    ("hour", "head_hour", "closed_hour", "expected"),
    [
        (HOURS[0], HOURS[1], "", True),
        (HOURS[1], HOURS[1], "", False),
        (HOURS[1], HOURS[1], HOURS[1], True),
        (HOURS[2], HOURS[1], HOURS[1], False),
        (HOURS[0], "", "", False),
    ],
)
def test_an_hour_is_closed_by_a_later_batch_or_a_close(
    hour: str, head_hour: str, closed_hour: str, *, expected: bool
) -> None:
    assert expected is is_closed(hour, head(head_hour, closed_hour))


def test_files_of_the_open_hour_are_left_alone() -> None:
    files = [file(str(n), hour=hour) for hour in HOURS for n in range(3)]
    assert [HOURS[0], HOURS[1]] == [part.commit_hour for part in plan_bins(files, head(), target_bytes=TARGET)]


def test_an_hour_of_one_file_is_left_alone() -> None:
    assert plan_bins([file("one")], head(), target_bytes=TARGET) == ()


def test_large_and_compacted_files_are_left_alone() -> None:
    files = [file("a", 50), file("b", 200), file(f"{COMPACTED_PREFIX}-c"), file(f"{COMPACTED_PREFIX}-d")]
    assert plan_bins(files, head(), target_bytes=TARGET) == ()


def test_files_are_taken_in_the_order_of_their_commits() -> None:
    files = [file("a", added_ms=3), file("b", added_ms=1), file("c", added_ms=2)]
    (planned,) = plan_bins(files, head(), target_bytes=TARGET)
    assert [each.added_ms for each in planned.files] == [1, 2, 3]


def test_a_large_hour_is_cut_into_equal_parts_that_follow_each_other() -> None:
    files = [file(str(n), 40, added_ms=n) for n in range(10)]
    parts = plan_bins(files, head(), target_bytes=TARGET)
    assert [len(part.files) for part in parts] == [3, 2, 3, 2]
    assert list(range(10)) == [each.added_ms for part in parts for each in part.files]


SIZES = st.lists(st.integers(0, 160), max_size=40)


@given(SIZES)
def test_no_file_is_in_two_bins_and_no_bin_is_much_larger_than_the_target(sizes: list[int]) -> None:
    files = [file(str(n), size, added_ms=n) for n, size in enumerate(sizes)]
    parts = plan_bins(files, head(), target_bytes=TARGET)
    taken = [each.path for part in parts for each in part.files]
    assert len(set(taken)) == len(taken)
    assert all(len(part.files) > 1 and part.size < TARGET * 1.5 for part in parts)


@given(SIZES)
def test_after_compaction_nothing_is_left_to_do(sizes: list[int]) -> None:
    files = [file(str(n), size, added_ms=n) for n, size in enumerate(sizes)]
    parts = plan_bins(files, head(), target_bytes=TARGET)
    gone = {each.path for part in parts for each in part.files}
    after = [each for each in files if each.path not in gone]
    after += [compacted(part, n) for n, part in enumerate(parts)]
    left = plan_bins(after, head(), target_bytes=TARGET)
    assert not {each.path for part in left for each in part.files} & {compacted(p, n).path for n, p in enumerate(parts)}


def compacted(part: Bin, number: int) -> LiveFile:
    return file(f"{COMPACTED_PREFIX}-{number}", part.size // 3, part.commit_hour)
