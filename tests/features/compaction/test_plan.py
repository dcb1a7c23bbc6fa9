"""The choice of files for compaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.features.compaction.plan import Bin, LeftFiles, LeftReason, plan_bins, plan_table
from lockstep.table.head import Head
from lockstep.table.live_files import COMPACTED_PREFIX, LiveFile, is_closed

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


def test_the_plan_gives_a_reason_for_each_file_that_it_leaves() -> None:
    files = [file("a"), file("b", 30), file("c", 50), file(f"{COMPACTED_PREFIX}-d", 7)]
    files += [file("alone", 20, HOURS[1]), file("open", 40, HOURS[2]), file("too", 2, HOURS[2])]
    plan = plan_table(files, head(), target_bytes=TARGET)
    assert [{each.path.split("/")[1] for each in part.files} for part in plan.bins] == [{"a", "b"}]
    assert (plan.files_before, plan.files_after, plan.bytes, plan.rows) == (2, 1, 40, 40)
    assert plan.left == (
        LeftFiles(LeftReason.OPEN, 1, 2, 42, HOURS[2], HOURS[2]),
        LeftFiles(LeftReason.COMPACTED, 1, 1, 7, HOURS[0], HOURS[0]),
        LeftFiles(LeftReason.LARGE, 1, 1, 50, HOURS[0], HOURS[0]),
        LeftFiles(LeftReason.ALONE, 1, 1, 20, HOURS[1], HOURS[1]),
    )


@given(SIZES, SIZES)
def test_every_file_is_in_one_bin_or_left_for_one_reason(closed: list[int], open_: list[int]) -> None:
    files = [
        file(f"{hour}-{n}", size, hour, n)
        for hour, of in zip(HOURS[1:], (closed, open_), strict=True)
        for n, size in enumerate(of)
    ]
    plan = plan_table(files, head(), target_bytes=TARGET)
    assert len(files) == plan.files_before + sum(each.files for each in plan.left)
    assert sum(each.size for each in files) == plan.bytes + sum(each.bytes for each in plan.left)
