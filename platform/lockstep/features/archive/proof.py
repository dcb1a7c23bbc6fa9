"""The archive in `lockstep verify`: it has the offsets that the ledger claims, each once, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lockstep.model.position import TopicIdPartition
from lockstep.table.layout import StreamFolders
from lockstep.verify.archive import ArchiveClaim, StoredArchive, find_damage, read_groups, split_claims
from lockstep.verify.files import UNREADABLE, require_bytes
from lockstep.verify.report import ViolationKind, ViolationPlace, Violations
from lockstep.verify.stored_tables import StoredTables

KIND = ViolationKind.ARCHIVE_DIFFERS


def check_archive(folders: StreamFolders, stored: StoredTables, violations: Violations) -> None:
    """Compare the archive with the ledger: by offsets, and by the digest of each batch and partition.

    1. The claims of each partition follow each other: no offset is claimed twice.
    2. The rows of each claim are in the archive once, and have its digest. A file is in memory.
    3. Nothing is left of the claims, and no rows have none.
    """
    if stored.head.archive is None or stored.head.origin is not None:
        return
    archive = StoredArchive(folders, stored.head)
    comparison = _Comparison(stored, violations)
    for key, claims in archive.claims.items():
        comparison.add_claims(key, claims)  # 1
    for file in archive.files:
        path = archive.folder / file.path
        try:
            rows = pa.concat_tables(read_groups(path))
        except UNREADABLE as error:
            require_bytes(path, error)
            violations.add(KIND, None, None, f"a readable file archive/{file.path}", str(error).splitlines()[0])
            continue
        for (key, batch), of_claim in split_claims(rows).items():
            if archive.dropped_up_to < batch <= stored.head.batch:
                comparison.take(key, batch, of_claim)  # 2
    comparison.finish()  # 3
    if archive.dropped_up_to:
        stored.notes.append(f"archived messages of batches up to {archive.dropped_up_to} were dropped by retention")


class _Comparison:
    """The claims of the ledger for which no rows were seen yet."""

    def __init__(self, stored: StoredTables, violations: Violations) -> None:
        self._names = {key: ranges[0].topic for key, ranges in stored.ledger.items()}
        self._left: dict[tuple[TopicIdPartition, int], ArchiveClaim] = {}
        self._violations = violations

    def add_claims(self, key: TopicIdPartition, claims: Sequence[ArchiveClaim]) -> None:
        """Add the claims of a partition, in order of batches."""
        reached = 0
        for claim in claims:
            if claim.start < reached:
                claimed = f"batch {claim.batch} archived from offset {claim.start} on"
                self._add(key, claim.start, f"offsets from {reached} on", claimed)
            reached = claim.until
            self._left[key, claim.batch] = claim

    def take(self, key: TopicIdPartition, batch: int, rows: pa.Table) -> None:
        """Compare the rows of a batch and a partition in a file with their claim, which has no others."""
        claim = self._left.pop((key, batch), None)
        if claim is None:
            content = f"{rows.num_rows} rows of batch {batch}"
            self._add(key, int(rows["offset"][0].as_py()), "each claim of the ledger once, and no other rows", content)
        elif damage := find_damage(claim, rows):
            expected = f"offsets {claim.start} to {claim.until - 1}, digest {claim.digest}, of batch {batch}"
            self._add(key, claim.start, expected, damage)

    def finish(self) -> None:
        """Report the claims that have no rows."""
        for (key, batch), claim in self._left.items():
            expected = f"offsets {claim.start} to {claim.until - 1} of batch {batch} in the archive"
            self._add(key, claim.start, expected, "none of them")

    def _add(self, key: TopicIdPartition, offset: int, expected: str, found: str) -> None:
        place = ViolationPlace(self._names.get(key, ""), key.topic_id, key.partition)
        self._violations.add(KIND, place, offset, expected, found)
