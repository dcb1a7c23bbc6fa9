"""Log entries by number, the head each of ours carries, and the one way to append an entry.

`history()` on a handle that is behind assigns wrong versions to entries, so lockstep reads the file
of a version itself.

Entries are found by bisection over their numbers, with one stat() or one small read per step, so that tens of
thousands cost as little as a few.
"""

from __future__ import annotations

import errno
import re
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from lockstep.errors import CommitUnknown, NotCommitted, TableError
from lockstep.model.decoding import decode_json, decode_json_lines
from lockstep.model.finding import Finding
from lockstep.storage import NotWritten, find_storage

FIRST_GENERATION = FIRST_BATCH = 1


HEAD_VERSION = 2
"""Version 1 recorded `running` after a run of any kind; see `Head.decode`."""


class Desired(Enum):
    """The desired state of a stream. Permitted changes: docs/decisions/0010.

    | state   | a never-ending run                        | a bounded run                         |
    |---------|-------------------------------------------|---------------------------------------|
    | running | always running: the supervisor's job      | allowed while no never-ending one is  |
    | bounded | started by an operator only               | the topics sensor asks for new topics |
    | stopped | started by an operator only               | started by an operator only           |
    | held    | refused until `lockstep start` or `stop`  | refused                               |
    | halted  | refused until `lockstep resume`           | refused                               |
    """

    RUNNING = "running"
    BOUNDED = "bounded"
    STOPPED = "stopped"
    HELD = "held"
    HALTED = "halted"


class SideFile(msgspec.Struct, frozen=True):
    """A file of a side table, named by the output commit and committed to its own table afterwards.

    Attributes:
        path: Relative to the side table.
        size: Bytes.
        rows: Number of rows.
        statistics: Delta statistics of the file, as JSON.
    """

    path: str
    size: int
    rows: int
    statistics: str


class SideBatch(msgspec.Struct, frozen=True):
    """The newest addition to a side table that does not grow with every batch.

    Attributes:
        batch: The batch that added it.
        after: The batch that added to the table before; 0 for none.
        files: Its files.
    """

    batch: int
    after: int
    files: tuple[SideFile, ...]


class Resumption(msgspec.Struct, frozen=True):
    """How an operator resumed a halted stream.

    Attributes:
        batch: The batch that is the resumption.
        at: Time, in seconds since 1970 (UTC).
        cause: The reason and the operator.
    """

    batch: int
    at: float
    cause: str


class Retention(msgspec.Struct, frozen=True):
    """The newest retention: rows that were dropped because of their age.

    Attributes:
        hour: Rows of commit hours before it are dropped, "YYYY-MM-DDTHH" UTC.
        batch: Last batch whose rows are dropped, with those of all batches before it.
        at: Time, in seconds since 1970 (UTC).
        cause: Why, and who.
    """

    hour: str
    batch: int
    at: float
    cause: str


class Lineage(msgspec.Struct, frozen=True):
    """A generation that ended: its batches are valid up to `last_batch`."""

    generation: int
    last_batch: int


class Savepoint(msgspec.Struct, frozen=True):
    """A batch that stays restorable until the savepoint is deleted, whatever the rewind floor is.

    Attributes:
        name: Its name.
        batch: The batch.
        version: The version of the output table at which that batch was committed.
        at: When the savepoint was made, in seconds since 1970 (UTC).
        cause: The reason and the operator.
    """

    name: str
    batch: int
    version: int
    at: float
    cause: str


class Rewind(msgspec.Struct, frozen=True):
    """A rewind since the rewind floor. Its version stays loadable: it names files that the floor's may not.

    Attributes:
        batch: The batch that is the rewind.
        version: The version of the output table that it made.
        to_batch: The batch to which it went back.
        undone: The last batch before it; what lies between was undone.
        cause: The reason and the operator.
    """

    batch: int
    version: int
    to_batch: int
    undone: int
    cause: str


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The newest erasure of a session (docs/decisions/0027). The session is named by a digest only.

    Attributes:
        digest: Digest of the session, as `compute_session_digest` makes it.
        topic: The topic to which it was restricted; empty for all.
        batch: The batch that is the erasure.
        version: The version of the output table that it made.
        at: Time, in seconds since 1970 (UTC).
        cause: The reason and the operator.
        is_finished: Whether quarantine and late table are rewritten, too.
    """

    digest: str
    topic: str
    batch: int
    version: int
    at: float
    cause: str
    is_finished: bool = False


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shadow began: a batch of another stream, whose state and positions its first batch took over.

    Attributes:
        stream: Name of that stream.
        table_id: Delta's id of its output table.
        batch: The batch.
        digest: SHA-256 of the state and the positions that were taken over, which a proof computes again.
        code: Folder, file or module of the declaration; empty where `assets/` declares the shadow.
        code_digest: Digest of the fold's source.
        at: When it began, in seconds since 1970 (UTC).
        cause: The reason and the operator.
    """

    stream: str
    table_id: str
    batch: int
    digest: str
    code: str
    code_digest: str
    at: float
    cause: str


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The savepoint with which a stream began in another table root: its first batch took over state and positions.

    Attributes:
        stream: Name of the stream.
        savepoint: Name of the savepoint.
        cluster_id: Id of the Kafka cluster from which it was read.
        table_id: Delta's id of the output table that had it.
        batch: The batch that it kept.
        mirror: Where this is a mirrored cluster: MirrorMaker's alias of that one. Topic ids and offsets are others.
        digest: SHA-256 of the state and the positions that were taken over, which a proof computes again.
        at: When it was imported, in seconds since 1970 (UTC).
        cause: The reason and the operator.
    """

    stream: str
    savepoint: str
    cluster_id: str
    table_id: str
    batch: int
    mirror: str = ""
    digest: str
    at: float
    cause: str


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The newest promotion: batches of a shadow that became those of the stream, in one commit.

    Attributes:
        shadow: Name of the shadow.
        to_batch: The batch from which the shadow had begun: rows up to it stayed.
        first: The first batch of the promotion: the positions of `to_batch`.
        batch: The last one: the positions of the shadow. Those in between have no log entry and no state of their own.
    """

    shadow: str
    to_batch: int
    first: int
    batch: int


class FoldCode(msgspec.Struct, frozen=True):
    """The code of the fold that writes, as of its claim.

    Attributes:
        digest: `digest_code` of the stream.
        first_batch: First batch that may be its own: the batches before it are of other code, or of code not known.
    """

    digest: str
    first_batch: int


class ViolationPolicy(msgspec.Struct, frozen=True):
    """What a declaration does on a violation.

    Attributes:
        suspends: The session of the violation is suspended; otherwise the stream halts.
        restarts_on_growth: The sessions of a topic that gets partitions are suspended, whatever else a violation does.
    """

    suspends: bool = False
    restarts_on_growth: bool = False


class PolicyChange(msgspec.Struct, frozen=True):
    """A policy and an integrity class, as of the claim that brought them.

    Attributes:
        first_batch: First batch that may be under them.
        policy: The policy.
        integrity: The class without its policy, as source text; empty where it was not recorded.
    """

    first_batch: int
    policy: ViolationPolicy
    integrity: str = ""


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """State of a stream as of one commit.

    Attributes:
        stream: Name of the stream that owns the table.
        cluster_id: Id of the Kafka cluster it reads.
        table_id: Delta's id of the output table; empty until the first claim.
        generation: The current lineage of batches.
        lineage: Generations that ended.
        epoch: Epoch of the writer that may commit.
        batch: Number of the last batch.
        batch_version: Version of the output table at which that batch was committed.
        hour: Commit hour of the last batch, "YYYY-MM-DDTHH" UTC.
        closed_hour: Newest hour into which nothing can be committed any more.
        desired: The desired state.
        reason: Why it was set, and by whom, in a few words.
        wished_version: Version of the output table at which the desired state was last set by an operator; 0 for never.
        resumes_as: While halted: the desired state after the resumption.
        findings: The evidence, while halted.
        ledger: The ledger file of the last batch.
        quarantine: The newest addition to the quarantine.
        late: The newest addition to the late table.
        full_ledger_batch: Newest batch whose ledger file holds the positions of all partitions.
        full_ledger_at: Its time, in seconds since 1970 (UTC).
        accepts_burst: An operator accepted a quarantine burst that is not over yet.
        rewind_floor: Oldest batch that a rewind may go back to, apart from savepoints.
        rewinds: Rewinds since that batch, oldest first.
        savepoints: Batches that stay restorable, by name.
        last_resumption: The newest resumption; None before the first.
        retention: The newest retention; None before the first.
        erasure: The newest erasure of a session; None before the first.
        origin: Of a shadow: where it began.
        imported: Of a stream that began with a savepoint from another table root: which one.
        promotion: The newest promotion of a shadow; None before the first.
        code: The code that writes; None before the first claim of a run, or where it is in no files.
        policies: The policies on violations and the classes, oldest first: a proof judges each batch by the policy of
            its time, and no batch by another class than that of its time.
        version: Version of this layout.
    """

    stream: str
    cluster_id: str
    table_id: str = ""
    generation: int = FIRST_GENERATION
    lineage: tuple[Lineage, ...] = ()
    epoch: int = 0
    batch: int = 0
    batch_version: int = 0
    hour: str = ""
    closed_hour: str = ""
    desired: Desired = Desired.STOPPED
    reason: str = "created"
    wished_version: int = 0
    resumes_as: Desired = Desired.BOUNDED
    findings: tuple[Finding, ...] = ()
    ledger: SideFile | None = None
    quarantine: SideBatch | None = None
    late: SideBatch | None = None
    full_ledger_batch: int = 0
    full_ledger_at: float = 0.0
    accepts_burst: bool = False
    rewind_floor: int = 0
    rewinds: tuple[Rewind, ...] = ()
    savepoints: tuple[Savepoint, ...] = ()
    last_resumption: Resumption | None = None
    retention: Retention | None = None
    erasure: Erasure | None = None
    origin: Origin | None = None
    imported: Imported | None = None
    promotion: Promotion | None = None
    code: FoldCode | None = None
    policies: tuple[PolicyChange, ...] = ()
    version: int = 1

    @property
    def valid_batches(self) -> dict[int, int]:
        """The last batch that counts of each generation; rewinds undid the later ones, and other generations whole."""
        return {ended.generation: ended.last_batch for ended in self.lineage} | {self.generation: self.batch}

    @property
    def kept_versions(self) -> dict[int, int]:
        """The versions that stay loadable besides those from the rewind floor on, by batch: of rewinds, savepoints."""
        made = {each.batch: each.version for each in self.rewinds}
        return made | {each.batch: each.version for each in self.savepoints}

    @property
    def is_rewound(self) -> bool:
        """Whether the last batch is a rewind."""
        return bool(self.rewinds) and self.rewinds[-1].batch == self.batch

    @property
    def taken_over(self) -> Origin | Imported | None:
        """What the first batch took over from another table: a shadow's origin, or an imported savepoint."""
        return self.origin or self.imported

    @property
    def inherited_up_to(self) -> int:
        """The last batch that another fold wrote, or another table contains: a proof begins with the state after it."""
        if self.promotion is not None:
            return self.promotion.first
        return FIRST_BATCH if self.taken_over is not None else 0

    @property
    def batch_before(self) -> int:
        """The batch that the side tables contain before the last one is added."""
        promoted = self.promotion is not None and self.promotion.batch == self.batch
        return (self.promotion.first if self.promotion is not None and promoted else self.batch) - 1

    def may_rewind_to(self, batch: int) -> bool:
        """Whether all that a rewind to a batch needs is kept."""
        return self.rewind_floor <= batch <= self.batch or any(each.batch == batch for each in self.savepoints)

    def encode(self) -> str:
        """As JSON, for the commit's metadata."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Head:
        """From a commit's metadata.

        A head of version 1 is `running` whatever kind of run wrote it. It is read as `bounded`, so that no supervisor
        starts a stream unasked; the next never-ending run makes it `running`.

        Raises:
            TableError: A newer release wrote fields that this one would silently drop.
        """
        try:
            head = decode_json(text, Head)
        except msgspec.ValidationError as error:
            raise TableError(
                f"this release of lockstep cannot read the table's head: {error}",
                next_step="run the release that wrote it, or a newer one",
            ) from error
        if head.version >= HEAD_VERSION:
            return head
        desired = Desired.BOUNDED if head.desired is Desired.RUNNING else head.desired
        return msgspec.structs.replace(head, desired=desired, version=HEAD_VERSION)


HEAD, KIND, TOKEN, CAUSE = "lockstep.head", "lockstep.kind", "lockstep.token", "lockstep.cause"
BATCH, EPOCH, VERSION = "lockstep.batch", "lockstep.epoch", "lockstep.version"

_ENTRY = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\b.*\.parquet$")
_WHOLE_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_DRAFT = re.compile(r"\.\d{20}\.json\..*\.tmp|\d{20}\.json#\d+")
"""What a process that was killed inside a commit leaves: of `Storage.create_whole`, and of delta-rs."""


class LogEntry(msgspec.Struct, frozen=True):
    """The contents of a log entry that lockstep needs.

    Attributes:
        version: Version of the table that the entry made.
        kind: lockstep's kind of commit; None for foreign commits.
        token: The token of the attempt that made it.
        head: Its head.
        operation: Delta's name of the operation.
        author: The engine that wrote it.
        written_at: Time by the writer's clock (UTC).
        cause: Of a claim: why the run began.
        transactions: The numbers of the entry by name.
    """

    version: int
    kind: str | None
    token: str | None
    head: Head | None
    operation: str
    author: str
    written_at: datetime | None = None
    cause: str = ""
    transactions: Mapping[str, int] = {}


class _Transaction(msgspec.Struct):
    appId: str  # noqa: N815  # Delta's own name
    version: int


class _Line(msgspec.Struct):
    """One line of an entry; only commitInfo and numbers matter here."""

    commitInfo: dict[str, object] | None = None  # noqa: N815  # Delta's own name
    txn: _Transaction | None = None


def make_entry_path(table: Path, version: int) -> Path:
    """The file of one version's entry."""
    return table / "_delta_log" / f"{version:020d}.json"


def open_delta_table(folder: Path, *, version: int | None = None) -> DeltaTable:
    """A handle on a table in a folder; of a version, where one is given.

    Raises:
        TableNotFoundError: There is none.
    """
    return DeltaTable(find_storage(folder).uri(folder), version=version)


def has_log(table: Path) -> bool:
    """Whether the folder contains a table."""
    return find_storage(table).exists(make_entry_path(table, 0)) or bool(list_checkpoints(table))


def read_entry(table: Path, version: int) -> LogEntry | None:
    """The entry of a version; None when there is none, or it is empty or torn."""
    try:
        text = find_storage(table).read(make_entry_path(table, version))
        lines = decode_json_lines(text, _Line)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    info = next((line.commitInfo for line in lines if line.commitInfo is not None), None)
    if info is None:
        return None if not lines else LogEntry(version, None, None, None, "unknown", "unknown")
    head = info.get(HEAD)
    return LogEntry(
        version=version,
        kind=_text(info.get(KIND)),
        token=_text(info.get(TOKEN)),
        head=Head.decode(head) if isinstance(head, str) else None,
        operation=str(info.get("operation", "unknown")),
        author=str(info.get("engineInfo", "unknown")),
        written_at=_time(info.get("timestamp")),
        cause=_text(info.get(CAUSE)) or "",
        transactions={line.txn.appId: line.txn.version for line in lines if line.txn is not None},
    )


def is_of_kind(table: Path, version: int, kind: str) -> bool:
    """Whether lockstep made the entry of a version as a commit of this kind; without decoding it."""
    try:
        text = find_storage(table).read(make_entry_path(table, version))
    except FileNotFoundError:
        return False
    return f'"{KIND}":"{kind}"'.encode() in text


def find_top_version(table: Path) -> int | None:
    """The newest version that has an entry or a log checkpoint; None without any. Lists the log once.

    A checkpoint without its entry counts: to take the version before it for the newest would write it a second time.
    """
    known = (name for name in _list_names(table) if _ENTRY.fullmatch(name) or _CHECKPOINT.match(name))
    return max((int(name[:20]) for name in known), default=None)


def list_versions(table: Path) -> list[int]:
    """The versions with an entry, oldest first; none without a log."""
    return sorted(int(name[:-5]) for name in _list_names(table) if _ENTRY.fullmatch(name))


def list_checkpoints(table: Path) -> dict[int, list[Path]]:
    """The files of each log checkpoint by its version, oldest first."""
    found: dict[int, list[Path]] = {}
    for name in sorted(filter(_CHECKPOINT.match, _list_names(table))):
        found.setdefault(int(name[:20]), []).append(table / "_delta_log" / name)
    return found


def is_whole_checkpoint(name: str) -> bool:
    """Whether a file of a log is a checkpoint of one file, as all of ours are."""
    return _WHOLE_CHECKPOINT.fullmatch(name) is not None


def list_drafts(table: Path) -> list[Path]:
    """Files of entries that were not published, or not yet."""
    return [table / "_delta_log" / name for name in _list_names(table) if _DRAFT.fullmatch(name)]


def _list_names(table: Path) -> list[str]:
    return find_storage(table).list_names(table / "_delta_log")


class _Added(msgspec.Struct):
    """An added file of an entry."""

    path: str
    stats: str | None = None


class _AddLine(msgspec.Struct):
    add: _Added | None = None


def read_statistics(table: Path, version: int) -> dict[str, str]:
    """Delta's statistics, as JSON, of the files that the log up to a version has added, by path."""
    made = {at: files for at, files in list_checkpoints(table).items() if at <= version}
    base, found = max(made, default=-1), dict[str, str]()
    for path in made.get(base, ()):
        added = pq.ParquetFile(find_storage(path).uri(path)).read(columns=["add"])["add"].to_pylist()
        found |= {each["path"]: each["stats"] for each in added if each is not None and each["stats"] is not None}
    for at in range(base + 1, version + 1):
        lines = decode_json_lines(find_storage(table).read(make_entry_path(table, at)), _AddLine)
        found |= {each.add.path: each.add.stats or "" for each in lines if each.add is not None}
    return found


def find_entry_time(table: Path, version: int) -> float:
    """When the entry of a version was written, in seconds since 1970 (UTC), by the storage's clock.

    Raises:
        FileNotFoundError: There is no such entry.
    """
    path = make_entry_path(table, version)
    found = find_storage(table).get_status(path)
    if found is None:
        raise FileNotFoundError(path)
    return found.modified_at


ATTEMPTS_MAX = 200
"""Losing this often in a row to harmless commits means that some process commits in a loop."""
UNANSWERED_MAX = 20
"""A disk that fails once is no reason to end a run; one that goes on failing is."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class NextEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to append.

    Attributes:
        version: The version that it makes: one more than the newest one that it was made for.
        kind: lockstep's kind of commit.
        actions: Files to add and to remove.
        alter: Changes the table in another way instead, as one commit of delta-rs with these properties.
        transactions: Numbers of the entry by name, at least one: an entry whose last line is a number is complete.
        metadata: Further metadata of the entry.
    """

    version: int
    kind: str
    actions: Sequence[AddAction | RemoveAction] = ()
    alter: Callable[[CommitProperties], None] | None = None
    transactions: Mapping[str, int]
    metadata: Mapping[str, str] = {}


def create_entry(path: Path, content: bytes) -> None:
    """Create the file of an entry whole, or not at all. Raises FileExistsError where there is one."""
    find_storage(path).create_whole(path, content)


CreateEntry = Callable[[Path, bytes], None]
"""How the file of an entry is created: `create_entry`, or what a test puts in its place."""


def append_entry(
    table: Path,
    next_entry: Callable[[], NextEntry | None],
    *,
    finds_late: bool = False,
    create: CreateEntry = create_entry,
) -> int | None:
    """Append an entry at exactly the version that it was made for, or not at all.

    1. `next_entry` reads the newest version, checks it and gives the entry.
    2. Create the entry, without retries: a true compare-and-swap.
    3. After any exception read the entry: the token decides.
    4. Lost to another commit: again from 1.
    5. Sync the entry and the log folder. An error there ends the run: a second attempt proves nothing.

    Args:
        table: Folder of the table.
        next_entry: None when there is nothing left to append.
        finds_late: It returns None, too, where an earlier attempt landed late: one without an answer is then repeated.
        create: Creates the file of the entry.

    Returns:
        The version that the entry made; None where there was nothing to append.

    Raises:
        CommitUnknown: It is unknown whether the entry was written.
        NotCommitted: The storage did not take it.
        TableError: The race was lost `ATTEMPTS_MAX` times.
    """
    token = uuid.uuid4().hex
    for attempt in range(ATTEMPTS_MAX):
        entry = next_entry()  # 1
        if entry is None:
            return None
        path = make_entry_path(table, entry.version)
        try:
            _write(path, entry, token, create)  # 2
        except (DeltaError, OSError) as error:
            written = read_entry(table, entry.version)  # 3
            if written is None and not (finds_late and attempt < UNANSWERED_MAX):
                raise _make_failure(table, entry.version, error) from error
            if written is None or written.token != token:
                continue  # 4
        find_storage(table).sync(path)  # 5
        return entry.version
    raise TableError(
        f"{table}: lost {ATTEMPTS_MAX} races in a row",
        next_step="look for a process that commits in a loop: `lockstep status`",
    )


def _write(path: Path, entry: NextEntry, token: str, create: CreateEntry) -> None:
    ours = {KIND: entry.kind, TOKEN: token, **entry.metadata}
    if entry.alter is None:
        create(path, encode_entry(entry, ours))
        return
    numbers = [Transaction(name, number) for name, number in entry.transactions.items()]
    entry.alter(CommitProperties(custom_metadata=ours, max_commit_retries=0, app_transactions=numbers))


ENGINE = "lockstep"
"""The author of our entries, as Delta's history shows it."""


def encode_entry(entry: NextEntry, metadata: Mapping[str, str]) -> bytes:
    """An entry that adds and removes files, one action a line (Delta's protocol, "Actions"); its numbers last.

    Without a newline at its end, so that every shorter file is a torn entry.
    """
    info = {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    lines: list[dict[str, object]] = [{"commitInfo": {**info, "engineInfo": ENGINE, **metadata}}]
    lines += map(_to_line, entry.actions)
    lines += ({"txn": {"appId": name, "version": number}} for name, number in entry.transactions.items())
    return b"\n".join(map(msgspec.json.encode, lines))


def _to_line(action: AddAction | RemoveAction) -> dict[str, object]:
    if isinstance(action, AddAction):
        added = {
            "path": quote(action.path, safe="/="),
            "partitionValues": action.partition_values,
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": action.data_change,
            "stats": action.stats,
        }
        return {"add": added}
    removed = {
        "path": quote(action.path, safe="/="),
        "dataChange": action.data_change,
        "deletionTimestamp": action.deletion_timestamp,
        "extendedFileMetadata": True,
        "partitionValues": action.partition_values,
        "size": action.size,
    }
    return {"remove": removed}


REMEDIES: Final = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the table root") | dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM), "make the table root writable"
)
"""What lets the next attempt succeed, by the number of the error."""


def _make_failure(table: Path, version: int, error: Exception) -> TableError:
    if isinstance(error, NotWritten):
        step = REMEDIES.get(error.errno or 0, "lockstep doctor checks the table root: correct what it reports")
        problem = f"{table}: version {version} was not written: {error.strerror}"
        return NotCommitted(problem, next_step=f"{step}, then repeat the command")
    return CommitUnknown(
        f"{table}: no answer whether version {version} was written: {error}",
        next_step="start the stream again: the next claim finds out",
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: object) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else None


ENTRIES_MAX = 20_000
"""Maximum of entries kept in the log of an output table, whatever the retention is. Each opening of the table lists the
log's folder, 1.2 us an entry (measured: 24 ms at 20,000, 63 ms at 52,000); at a trigger of 5 s these are 28 hours, at
1 s five."""


def find_head_since(table: Path, since: float, *, entries_max: int = ENTRIES_MAX) -> Head | None:
    """The head at the first entry that is not older than a time, and is one of the newest `entries_max`.

    Args:
        table: Folder of the table.
        since: Seconds since 1970 (UTC), compared with the modification time of the entries' files.
        entries_max: Maximum of entries from it to the newest.

    Returns:
        None where no entry is recent enough.
    """
    versions = list_versions(table)
    first = bisect_left(versions, since, key=lambda version: _find_time(table, version))
    first = max(first, len(versions) - entries_max)
    for version in versions[first:]:
        entry = read_entry(table, version)
        if entry is not None and entry.head is not None:
            return entry.head
    return None


def _find_time(table: Path, version: int) -> float:
    """When an entry was written; one that another clean-up has deleted since is older than all others."""
    try:
        return find_entry_time(table, version)
    except FileNotFoundError:
        return 0.0


def find_head_of_batch(table: Path, batch: int) -> Head | None:
    """The head right after a batch was committed; None where the log no longer contains it."""
    versions = list_versions(table)
    position = bisect_left(versions, batch, key=lambda version: _batch(table, version))
    if position == len(versions):
        return None
    entry = read_entry(table, versions[position])
    return entry.head if entry is not None and entry.head is not None and entry.head.batch == batch else None


def find_head_at(table: Path, at: datetime) -> Head | None:
    """The head at a time, by the clocks of the writers; None where the log does not go back to it.

    Nor does it where the entries after the one found were deleted: of a savepoint below the rewind floor one is left.
    """
    versions = list_versions(table)
    after = bisect_right(versions, at, key=lambda version: _written_at(table, version))
    if not after or versions[after : after + 1] not in ([], [versions[after - 1] + 1]):
        return None
    entry = read_entry(table, versions[after - 1])
    return None if entry is None else entry.head


def _written_at(table: Path, version: int) -> datetime:
    entry = read_entry(table, version)
    return entry.written_at if entry is not None and entry.written_at is not None else datetime.min.replace(tzinfo=UTC)


def _batch(table: Path, version: int) -> int:
    entry = read_entry(table, version)
    return entry.head.batch if entry is not None and entry.head is not None else -1
