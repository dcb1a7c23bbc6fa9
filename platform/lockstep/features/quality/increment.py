"""The input of a check: the files that were added since the last check, or the whole table, with the reason.

The log lists the files that a commit added, and its kind shows its effect on rows. Compactions add no rows, and
retention drops only old rows. An erasure, a commit of another tool, a replaced or rewound table, other rules, or files
and entries that are gone make a check read everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec

from lockstep.errors import TableError
from lockstep.features.quality.partitions import SessionEnd
from lockstep.features.quality.rules import FileSummary, PartitionSummary, RuleResult
from lockstep.model.decoding import decode_json, decode_msgpack
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_provenance_schema
from lockstep.storage import find_storage
from lockstep.table import delta_log, transactions
from lockstep.table.commit import OutputLog
from lockstep.table.commit_kinds import CommitKind, RowChange, find_commit_kind
from lockstep.table.head import Head, Lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lockstep.table.layout import StreamFolders

STATE_FILE: Final = "last_check.msgpack"


class TableVersions(msgspec.Struct, frozen=True):
    """Matching versions of a stream: both tables after the same batch.

    Attributes:
        table: Version of the output table.
        ledger: Version of the ledger, which may hold later batches as well.
        batch: Number of the last batch that both hold; 0 before the first.
        retired: Number of the last batch whose rows were dropped by retention; 0 for none.
        table_id: Delta's id of the output table.
        valid: The last batch that counts of each generation, the current generation last.
        token: The token of the table version's entry; empty if it is gone, or an older release checked it.
    """

    table: int
    ledger: int
    batch: int
    retired: int = 0
    table_id: str = ""
    valid: tuple[Lineage, ...] = ()
    token: str = ""

    @property
    def generation(self) -> int:
        """The current generation."""
        return self.valid[-1].generation


def find_matching_versions(folders: StreamFolders) -> TableVersions:
    """The newest versions that match.

    The ledger follows the table, by one batch at most. If that batch is missing, the result is
    the table's version before it; so nothing needs a wait.

    Raises:
        TableError: The tables are further apart, or the table has a foreign writer.
    """
    log = OutputLog(folders.table)
    base = log.base()
    ledger = delta_log.open_delta_table(folders.ledger)
    ledger_batch = ledger.transaction_version(transactions.BATCH) or 0
    head = base.head
    if ledger_batch >= head.batch:
        return _make_versions(folders.table, base.version, ledger.version(), head, log.table_id)
    # The table is committed first: its last batch may still be missing in the ledger.
    head_before = delta_log.read_head(folders.table, head.batch_version - 1)
    if ledger_batch == head.batch_before and head_before is not None:
        return _make_versions(folders.table, head.batch_version - 1, ledger.version(), head_before, log.table_id)
    batches = f"{folders.ledger} holds batch {ledger_batch}, the output table batch {head.batch}"
    raise TableError(
        f"{batches}: they differ by more than one batch",
        next_step="restore the ledger; nothing can be proved until both agree",
    )


def _make_versions(folder: Path, table: int, ledger: int, head: Head, table_id: str) -> TableVersions:
    retired = 0 if head.retention is None else head.retention.batch
    valid = tuple(Lineage(generation, last) for generation, last in head.valid_batches.items())
    return TableVersions(table, ledger, head.batch, retired, table_id, valid, _read_token(folder, table))


def _read_token(table: Path, version: int) -> str:
    entry = delta_log.read_entry(table, version)
    if entry is None:
        return ""
    return entry.token or ""


class CheckState(msgspec.Struct, frozen=True):
    """The state that a check leaves for the next check.

    Attributes:
        versions: The checked versions.
        rules: The options of the built-in rules, by which forgotten partitions became one sum, and the user's rules, as
            source text.
        totals: The measurements of all partitions since the last full check.
        sessions: The newest sessions with numbers.
        results: The results.
        forgotten: Partitions of which nothing can follow, by (topic id, partition): their topics are long deleted.
    """

    versions: TableVersions
    rules: tuple[str, ...]
    totals: tuple[PartitionSummary, ...]
    sessions: tuple[SessionEnd, ...]
    results: tuple[RuleResult, ...]
    forgotten: frozenset[TopicIdPartition] = frozenset()


def make_state_path(folders: StreamFolders) -> Path:
    """The file of a stream's state."""
    return folders.quality / STATE_FILE


def load_state(folders: StreamFolders) -> CheckState | None:
    """The state that the last check left; None without one that this release can read."""
    path = make_state_path(folders)
    try:
        return decode_msgpack(find_storage(path).read(path), CheckState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def keep_state(folders: StreamFolders, state: CheckState) -> None:
    """Replace the state atomically."""
    path = make_state_path(folders)
    find_storage(path).replace(path, msgspec.msgpack.encode(state))


class AddedFile(msgspec.Struct, frozen=True):
    """A data file that a commit added.

    Attributes:
        action: The log's line that added it.
        path: Relative to the table.
        size: Bytes.
        rows: Rows; None if the log does not count them.
        nulls: Its nulls by column, as far as they are counted.
    """

    action: str
    path: str
    size: int
    rows: int | None
    nulls: dict[str, int]

    def summarize(self) -> FileSummary:
        """The measurements of its provenance columns."""
        counts = [self.nulls.get(field.name) for field in make_provenance_schema() if not field.nullable]
        rows = 1 if self.rows is None else self.rows  # a file with an unknown number of rows is not proved
        nulls = [count for count in counts if count is not None]
        return FileSummary(
            path=self.path,
            rows=rows,
            nulls=sum(nulls),
            uncounted=rows * (len(counts) - len(nulls)),
            size=self.size,
        )


class Increment(msgspec.Struct, frozen=True):
    """The part of a table since an earlier check.

    Attributes:
        state: What that check left.
        files: The files that were added since.
    """

    state: CheckState
    files: tuple[AddedFile, ...]


def plan_increment(
    folders: StreamFolders, state: CheckState | None, versions: TableVersions, rules: Sequence[str]
) -> Increment | str:
    """The files that were added between the last check and a version; or why the whole table is read."""
    if state is None:
        return "there is no earlier result to continue from"
    checked = state.versions
    if (checked.table_id, checked.generation) != (versions.table_id, versions.generation):
        return "the table was replaced or rewound since the last check"
    if checked.table > versions.table or checked.batch > versions.batch:
        return "the table is older than at the last check"
    # An empty token proves nothing: the entry is gone, or a release without tokens wrote the state.
    if checked.token and _read_token(folders.table, checked.table) not in {"", checked.token}:
        return "the table was set back since the last check, and written again"
    if state.rules != tuple(rules):
        return "the rules were changed since the last check"
    changes = _read_changes(folders.table, checked.table + 1, versions.table)
    return changes if isinstance(changes, str) else Increment(state, changes)


class _Statistics(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    null_count: dict[str, object] = {}


class _Change(msgspec.Struct):
    path: str
    size: int = 0
    stats: str | None = None


class _Line(msgspec.Struct, rename="camel"):
    add: _Change | None = None
    remove: _Change | None = None
    commit_info: dict[str, object] | None = None


def _read_changes(table: Path, first: int, last: int) -> tuple[AddedFile, ...] | str:
    """The data files that some versions added; or why that is not all that they changed."""
    added = dict[str, AddedFile]()
    removed = set[str]()
    for version in range(first, last + 1):
        lines = _read_lines(table, version)
        if lines is None:
            return f"the log entry of version {version} is gone"
        kind = _find_kind(change for _, change in lines)
        if kind is None and not any(change.add or change.remove for _, change in lines):
            continue  # somebody described the table
        if kind is None or kind.row_change is RowChange.REPLACED:
            writer = "another tool" if kind is None else kind.name
            return f"version {version} may have changed rows: {writer}"
        removed.update(change.remove.path for _, change in lines if change.remove is not None)
        if kind.changes_data:
            adds = [(line, change.add) for line, change in lines if change.add is not None]
            added |= {add.path: _read_added(line, add) for line, add in adds}
    # Rows that a compaction moved are read from the files that the batches added, until these are deleted.
    for path in removed & added.keys():
        if not find_storage(table).exists(table / unquote(path)):
            return f"{path}, which was compacted since the last check, is deleted"
    return tuple(added.values())


def _find_kind(changes: Iterable[_Line]) -> CommitKind | None:
    """The kind of a commit; None for one of another tool."""
    for change in changes:
        if change.commit_info is not None:
            return find_commit_kind(change.commit_info.get(delta_log.KIND))
    return find_commit_kind(None)


def _read_lines(table: Path, version: int) -> list[tuple[bytes, _Line]] | None:
    try:
        text = find_storage(table).read(delta_log.make_entry_path(table, version))
        return [(line, decode_json(line, _Line)) for line in text.splitlines() if line.strip()]
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _read_added(line: bytes, change: _Change) -> AddedFile:
    statistics = decode_json(change.stats, _Statistics) if change.stats else _Statistics()
    nulls = {name: count for name, count in statistics.null_count.items() if isinstance(count, int)}
    return AddedFile(line.decode(), change.path, change.size, statistics.num_records, nulls)
