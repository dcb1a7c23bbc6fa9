"""Checks a whole stream and stores the result with its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lockstep.engine.driver.metrics import compute_completeness_percent
from lockstep.quality.aggregate import TableVersions, find_matching_versions, summarize, summarize_files
from lockstep.quality.rules import PROOF_NOT_NULL, PartitionSummary, RuleOutcome, RuleResult, judge_partitions
from lockstep.quality.suite import Judged, judge_summary, list_not_judged
from lockstep.storage import find_storage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lockstep.table.layout import StreamFolders


RESULT_FILE: Final = "last_check.json"

RULES: Final = (*(rule.id for rule in judge_partitions(snapshots_emit=True)), PROOF_NOT_NULL.id)
"""Ids of all rules, in the order of the results."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check.

    Attributes:
        stream: Name of the stream.
        versions: The checked versions.
        partitions: The measurements, in order of topic and partition.
        results: One a rule, in the order of `RULES`.
    """

    stream: str
    versions: TableVersions
    partitions: tuple[PartitionSummary, ...]
    results: tuple[RuleResult, ...]

    @property
    def rows(self) -> int:
        """Number of checked rows."""
        return sum(place.rows for place in self.partitions)

    @property
    def completeness_percent(self) -> float | None:
        """The percentage of the offsets ever read that is accounted for; None when none was read."""
        offsets = sum(place.offsets_read + place.gap_offsets for place in self.partitions)
        lost = sum(
            place.gap_offsets + place.unexplained_offsets + place.unexplained_messages for place in self.partitions
        )
        return compute_completeness_percent(max(0, offsets - lost), offsets) if offsets else None

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing that could be checked was broken."""
        outcomes = {result.outcome for result in self.results}
        return RuleOutcome.PASSED in outcomes and outcomes <= {RuleOutcome.PASSED, RuleOutcome.NOTHING}


def check_stream(
    spark: SparkSession, folders: StreamFolders, *, snapshots_emit: bool = True, in_order: bool = True
) -> Checked:
    """Check everything that a stream has committed, also while a writer runs, and store the result.

    1. Find matching versions of table and ledger.
    2. Count the nulls of the provenance columns, from the log.
    3. Measure the partitions; not where provenance is null, because Spark would misread it.
    4. Judge each rule.
    5. Store the result under `<table root>/<stream>/quality`.

    Args:
        spark: A session with Delta's extensions, as `prepare_session` configures it.
        folders: The stream.
        snapshots_emit: Whether the transform's snapshots may emit rows (those of `TableFold` never
            do); only without them is a repeated sequence a break.
        in_order: Whether the class promises that the numbers of a session only rise.

    Raises:
        TableError: The tables do not belong together, or have a foreign writer.
    """
    versions = find_matching_versions(folders)  # 1
    files = summarize_files(folders.table, versions.table)  # 2
    rules = judge_partitions(snapshots_emit=snapshots_emit, in_order=in_order)
    broken = sum(file.nulls for file in files)
    partitions = () if broken else summarize(spark, folders, versions)  # 3
    judged = (  # 4
        list_not_judged(rules, f"not judged: proof columns hold {broken} nulls, see rule {PROOF_NOT_NULL.id}")
        if broken
        else judge_summary(rules, partitions)
    )
    proof = judge_summary((PROOF_NOT_NULL,), files)
    checked = Checked(
        stream=folders.stream,
        versions=versions,
        partitions=partitions,
        results=(*judged.results, *proof.results),
    )
    _keep(folders, checked, (judged, proof))  # 5
    return checked


def make_result_path(folders: StreamFolders) -> Path:
    """The file with the last result and Great Expectations' output, as JSON."""
    return folders.root / folders.stream / "quality" / RESULT_FILE


class _Kept(msgspec.Struct, frozen=True):
    checked: Checked
    great_expectations: tuple[msgspec.Raw, ...]


def _keep(folders: StreamFolders, checked: Checked, judged: tuple[Judged, ...]) -> None:
    """Replace the last result atomically."""
    path = make_result_path(folders)
    kept = _Kept(checked, tuple(part.raw for part in judged if part.raw is not None))
    find_storage(path).replace(path, msgspec.json.format(msgspec.json.encode(kept)))
