"""The table root, and the folders of a stream under it."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from lockstep.addresses import is_in_object_store
from lockstep.errors import TableError
from lockstep.settings import DEFAULT_TABLE_ROOT
from lockstep.storage import find_storage


class StreamFolders(msgspec.Struct, frozen=True):
    """The folders of one stream; each table has its own, because vacuum deletes foreign files.

    Attributes:
        stream: Name of the stream.
        root: The table root that holds all streams.
    """

    stream: str
    root: Path

    @property
    def table(self) -> Path:
        """The output table."""
        return self.root / self.stream / "table"

    @property
    def ledger(self) -> Path:
        """The side table of positions and counts."""
        return self.root / self.stream / "ledger"

    @property
    def quarantine(self) -> Path:
        """The side table of messages that could not be applied."""
        return self.root / self.stream / "quarantine"

    @property
    def late(self) -> Path:
        """The side table of late messages, if the class has one."""
        return self.root / self.stream / "late"

    @property
    def archive(self) -> Path:
        """The side table of the messages as Kafka had them, if the declaration asks for it."""
        return self.root / self.stream / "archive"

    @property
    def state(self) -> Path:
        """Durable state files, referenced by ledger rows."""
        return self.root / self.stream / "state"

    @property
    def export(self) -> Path:
        """The plain Parquet dataset, if the declaration names no other folder."""
        return self.root / self.stream / "export"

    @property
    def current(self) -> Path:
        """The table of the current rows, if the declaration asks for it."""
        return self.root / self.stream / "current"

    @property
    def control(self) -> Path:
        """Liveness counters and request files between runs."""
        return self.root / self.stream / "control"

    @property
    def quality(self) -> Path:
        """Results and reports of checks."""
        return self.root / self.stream / "quality"

    @property
    def incoming(self) -> Path:
        """There while the objects of the stream are copied to its place in an object store."""
        return self.root / self.stream / "incoming"


class DerivedFolders(msgspec.Struct, frozen=True):
    """The folders of one derived table.

    Attributes:
        name: Name of the derived table.
        root: The table root that holds all streams and derived tables.
    """

    name: str
    root: Path

    @property
    def table(self) -> Path:
        """The table; missing if a stream of this name has one."""
        return self.root / self.name / "derived"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints of Structured Streaming, a folder each; the newest commit of the table names the one in use."""
        return self.root / self.name / "checkpoints"

    @property
    def lock(self) -> Path:
        """Locked by the run that writes."""
        return self.root / self.name / "lock"


class TableRootMissing(TableError):
    """The table root of the settings does not exist: perhaps its disk is not mounted.

    Attributes:
        root: The table root.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"the table root {root} does not exist",
            next_step=f"mount its disk, or correct table_root; a new installation: mkdir -p {shlex.quote(str(root))}",
        )
        self.root = root


def require_root(root: Path) -> None:
    """Refuse a missing table root, unless it is the default one, which is made by the first start.

    A prefix of an object store needs no making: its first object makes it.

    Raises:
        TableRootMissing: It was named in the settings, and does not exist.
    """
    is_made = is_in_object_store(root) or root.absolute() == DEFAULT_TABLE_ROOT.absolute()
    if not is_made and not find_storage(root).exists(root):
        raise TableRootMissing(root)
