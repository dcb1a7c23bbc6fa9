"""The size of archives as metrics, as the last housekeeping has measured it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.operations.growth import FileKind, read_growth
from lockstep.operations.stream_gauges import StreamGauge
from lockstep.table.layout import StreamFolders

BYTES: Final = "lockstep_archive_bytes"
FILES: Final = "lockstep_archive_files"
MEANINGS: Final = {
    BYTES: "Bytes of the archive, as the last housekeeping has measured them.",
    FILES: "Files of the archive, as the last housekeeping has measured them.",
}


def read_archive_gauges(folders: StreamFolders) -> Iterator[StreamGauge]:
    """Read bytes and files of the archive; nothing before the first housekeeping, or without an archive."""
    growth = read_growth(folders)
    for each in () if growth is None else growth.kinds:
        if each.kind is FileKind.ARCHIVE and each.files:
            yield StreamGauge(BYTES, MEANINGS[BYTES], each.bytes)
            yield StreamGauge(FILES, MEANINGS[FILES], each.files)
