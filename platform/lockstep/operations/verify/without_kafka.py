"""What can be checked of batches whose messages Kafka no longer has: that counts and tables agree."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.operations.verify.kept import KeptMessages
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.ranges import LedgerRange
from lockstep.operations.verify.table_rows import Cursor


def check_without_kafka(
    ranges: Iterable[LedgerRange], cursor: Cursor, kept: KeptMessages, violations: Violations
) -> None:
    """Compare the ledger's counts of each range with the rows and the quarantine of its offsets."""
    for row in ranges:
        rows = sum(batch.num_rows for batch in cursor.before(row.until))
        if rows != row.rows:
            expected = f"{rows} rows in batch {row.batch}, as the table has"
            violations.add(ViolationKind.COUNT_DIFFERS, row.place, row.start, expected, row.rows)
        quarantined = kept.count(row.start, row.until)
        if quarantined != row.quarantined:
            expected = f"{quarantined} quarantined in batch {row.batch}, as the quarantine has"
            violations.add(ViolationKind.COUNT_DIFFERS, row.place, row.start, expected, row.quarantined)
