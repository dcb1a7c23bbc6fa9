"""What can be checked of batches whose messages Kafka no longer has: that counts and tables agree."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.operations.verify.aside import Aside
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.ranges import LedgerRange
from lockstep.operations.verify.table_rows import Cursor


def check_without_kafka(ranges: Iterable[LedgerRange], cursor: Cursor, aside: Aside, violations: Violations) -> None:
    """Compare the ledger's counts of each range with its rows, its quarantine and what it has in the late table.

    Rows that timers emit where a range ends lie at the first offset of the next one.
    """
    ahead = 0
    for row in ranges:
        rows = sum(batch.num_rows for batch in cursor.before(row.until)) - ahead + row.rows_emitted
        ahead = row.rows_emitted
        compared = {
            "rows": (rows, "the table"),
            "quarantined": (aside.kept.count(row.batch), "the quarantine"),
            "late": (aside.late.count(row.batch), "the late table"),
        }
        for name, (stored, where) in compared.items():
            if stored != getattr(row, name):
                expected = f"{stored} {name} in batch {row.batch}, as {where} has"
                violations.add(ViolationKind.COUNT_DIFFERS, row.place, row.start, expected, getattr(row, name))
