"""One stream with a different fault in each partition: the rules for a fault find it, other rules do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from lockstep.features.quality import aggregate
from lockstep.features.quality.check import RULES, Checked, check_stream
from lockstep.features.quality.rules import PartitionSummary, RuleOutcome, judge_partitions
from lockstep.features.quality.suite import judge_summary
from lockstep.model.finding import Hole
from lockstep.rules import InRange, Predicate, Unique
from lockstep.table.ledger import Accepted
from tests.features.quality.stream_tables import CLEAN, Batch, Part, Place, clean_batches, quiet, write, write_more

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.table.layout import StreamFolders

COMPLETENESS, ROWS, DUPLICATES, SEQUENCE, _ = RULES

Parts = list[Part]
"""The parts of one partition by batch: offsets 100 to 129, 130 to 159, 160 to 189."""


def a_row_of_two_is_lost(parts: Parts) -> None:
    parts[1].files[0].remove(parts[1].row(133, 1))


def the_only_row_of_a_message_is_lost(parts: Parts) -> None:
    parts[1].files[0].remove(parts[1].row(132))


def a_file_is_committed_twice(parts: Parts) -> None:
    parts[1].files.append(parts[1].files[0])


def a_ledger_row_is_missing(parts: Parts) -> None:
    parts[1].ledger.clear()


def all_ledger_rows_are_missing(parts: Parts) -> None:
    for part in parts:
        part.ledger.clear()


def two_ranges_overlap(parts: Parts) -> None:
    parts[1].change_ledger(start=128, holes=[Hole(128, 130, "marker"), *parts[1].ledger[0].holes])


def too_many_messages_are_counted(parts: Parts) -> None:
    parts[1].change_ledger(messages=parts[1].ledger[0].messages + 1)


def a_hole_is_not_written_down(parts: Parts) -> None:
    parts[1].change_ledger(holes=[])


def too_few_rows_are_counted(parts: Parts) -> None:
    parts[1].change_ledger(rows=1)


def wrong_counts_of_two_batches_cancel_out(parts: Parts) -> None:
    for part, more in ((parts[0], 1), (parts[1], -1)):
        part.change_ledger(rows=part.ledger[0].rows + more)


def a_row_lies_beyond_what_was_read(parts: Parts) -> None:
    parts[2].files[0].append(parts[2].row(187) | {"_emit_offset": 500, "_offset": 500, "_sequence": 900})


def two_sequences_are_swapped(parts: Parts) -> None:
    first = parts[1].row(132)
    second = parts[1].row(134)
    first["_sequence"], second["_sequence"] = second["_sequence"], first["_sequence"]


def a_number_is_used_by_two_messages(parts: Parts) -> None:
    parts[1].row(134)["_sequence"] = parts[1].row(133)["_sequence"]


def a_session_began_anew_with_the_number_it_had_ended_with(parts: Parts) -> None:
    for row in parts[2].files[0]:
        if row["_session"] == "s1":
            row["_sequence"] -= 1  # 14, as at offset 137; messages without rows are in between


def a_swap_was_noticed_and_let_pass(parts: Parts) -> None:
    two_sequences_are_swapped(parts)  # with one in between: two numbers are late
    parts[1].change_ledger(repeats=2)


def a_loss_was_accepted(parts: Parts) -> None:
    why = "the disk was lost"
    loss = Accepted(kind="accept-loss", cause="", start=190, until=195, session=None, who="anna", why=why)
    parts[2].ledger.append(quiet(PLACES[a_loss_was_accepted.__name__], 3))
    parts[2].ledger[1] = replace(parts[2].ledger[1], start=190, until=195, accepted=[loss])


def a_position_is_repeated_while_nothing_is_read(parts: Parts) -> None:
    resting = replace(quiet(PLACES[a_position_is_repeated_while_nothing_is_read.__name__], 3), start=190, until=190)
    parts[2].ledger.append(resting)


def nothing_is_wrong(parts: Parts) -> None:
    del parts


FAULTS: list[tuple[Callable[[Parts], None], set[str]]] = [
    (a_row_of_two_is_lost, {ROWS}),
    (the_only_row_of_a_message_is_lost, {COMPLETENESS, ROWS}),
    (a_file_is_committed_twice, {DUPLICATES}),
    (a_ledger_row_is_missing, {COMPLETENESS}),
    (all_ledger_rows_are_missing, {COMPLETENESS}),
    (two_ranges_overlap, {COMPLETENESS}),
    (too_many_messages_are_counted, {COMPLETENESS}),
    (a_hole_is_not_written_down, {COMPLETENESS}),
    (too_few_rows_are_counted, {ROWS}),
    (wrong_counts_of_two_batches_cancel_out, {ROWS}),
    (a_row_lies_beyond_what_was_read, {COMPLETENESS}),
    (two_sequences_are_swapped, {SEQUENCE}),
    (a_number_is_used_by_two_messages, {SEQUENCE}),
    (a_session_began_anew_with_the_number_it_had_ended_with, set()),
    (a_swap_was_noticed_and_let_pass, set()),
    (a_loss_was_accepted, set()),
    (a_position_is_repeated_while_nothing_is_read, set()),
    (nothing_is_wrong, set()),
]
PLACES = {fault.__name__: Place(fault.__name__, f"id-{number}", 0) for number, (fault, _) in enumerate(FAULTS)}
NAMES = list(PLACES)


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    batches = clean_batches(4, [*CLEAN, *PLACES.values()])[:3]
    for fault, _ in FAULTS:
        fault([batch[PLACES[fault.__name__]] for batch in batches])
    return batches


@pytest.fixture(scope="module")
def folders(batches: list[Batch], tmp_path_factory: pytest.TempPathFactory) -> StreamFolders:
    return write(tmp_path_factory.mktemp("faults"), batches)


@pytest.fixture(scope="module")
def checked(spark: SparkSession, folders: StreamFolders) -> Checked:
    return check_stream(spark, folders)


@pytest.fixture
def partition(checked: Checked, name: str) -> PartitionSummary:
    return next(found for found in checked.partitions if found.topic == name)


@pytest.mark.parametrize(("name", "seen_by"), [(fault.__name__, rules) for fault, rules in FAULTS], ids=NAMES)
def test_a_fault_is_seen_by_the_rules_about_it_and_by_no_other(partition: PartitionSummary, seen_by: set[str]) -> None:
    rules = judge_partitions()
    assert {rule.id for rule in rules if rule.breaks(partition)} == seen_by


def test_every_rule_fails_and_names_the_partitions_that_broke_it(checked: Checked) -> None:
    for result in checked.results[:-1]:
        broken = {fault.__name__ for fault, seen_by in FAULTS if result.rule in seen_by}
        assert (result.outcome, result.unexpected) == (RuleOutcome.FAILED, len(broken))
        assert {row["topic"] for row in result.worst} == broken
        assert result.checked == len(CLEAN) + len(FAULTS)
    assert not checked.passed


@pytest.mark.slow
def test_many_tasks_measure_what_one_does_also_in_increments(
    spark: SparkSession, batches: list[Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [InRange("value", at_least=150), Unique("_row"), Predicate("_offset % 2 = 0", id="even")]
    folders = write(tmp_path, batches[:1])

    def check(small_bytes: int, *, keep: bool = False, full: bool = False) -> Checked:
        with monkeypatch.context() as patch:
            patch.setattr(aggregate, "SMALL_BYTES", small_bytes)
            return check_stream(spark, folders, rules=rules, keep=keep, full=full)

    for number in range(1, len(batches) + 1):
        assert check(aggregate.SMALL_BYTES) == (last := check(-1, keep=True))
        write_more(folders, batches[: number + 1], number)
    whole = check(aggregate.SMALL_BYTES, full=True)
    assert whole == check(-1, full=True)
    assert [each.coverage.full for each in (whole, last)] == [True, False]


@pytest.mark.parametrize("name", ["a_number_is_used_by_two_messages"])
def test_numbers_are_not_checked_and_the_reason_is_given_where_the_class_promises_no_order(
    partition: PartitionSummary,
) -> None:
    results = judge_summary(judge_partitions("messages come in any order"), [partition]).results
    assert [result.outcome for result in results] == [RuleOutcome.PASSED] * 3 + [RuleOutcome.NOTHING]
    assert results[-1].reason == "messages come in any order"


@pytest.mark.parametrize("name", ["nothing_is_wrong"])
def test_rows_without_numbers_leave_the_sequence_unchecked(partition: PartitionSummary) -> None:
    results = judge_summary(judge_partitions(), [replace(partition, numbered_rows=0)]).results
    assert [result.outcome for result in results] == [RuleOutcome.PASSED] * 3 + [RuleOutcome.NOTHING]
    assert results[-1].reason == "no row carries a sequence"


@pytest.mark.parametrize("name", ["a_loss_was_accepted"])
def test_an_accepted_loss_is_counted(partition: PartitionSummary) -> None:
    assert (partition.accepted_losses, partition.offsets_read) == (5, 95)
