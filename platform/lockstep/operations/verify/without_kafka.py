"""What can be checked of batches whose messages Kafka no longer has: that counts and tables agree."""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.operations.verify.kept import KeptMessages
from lockstep.operations.verify.proof import ViolationKind, Violations
from lockstep.operations.verify.ranges import Chain, LedgerRange
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


def check_totals(chain: Chain, cursor: Cursor, kept: KeptMessages, violations: Violations) -> None:
    """Compare the sums of the ledger's counts with all rows and the whole quarantine of a partition.

    Where messages are held back or timers run, rows and quarantine of a message may belong to a later batch, so the
    counts of single batches say nothing. Timers may emit at the very end of what was read.
    """
    compared = {
        "rows": (sum(batch.num_rows for batch in cursor.before(chain.until + 1)), sum(r.rows for r in chain.ranges)),
        "quarantined": (kept.count(chain.start, chain.until), sum(r.quarantined for r in chain.ranges)),
    }
    for name, (stored, said) in compared.items():
        if stored != said:
            expected = f"{stored} {name} in all batches, as stored"
            violations.add(ViolationKind.COUNT_DIFFERS, chain.place, chain.start, expected, said)
