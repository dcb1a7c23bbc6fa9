"""Startup of a writer: checks, claim, side tables, positions.

Checks before the claim leave a run of the older release undisturbed. A task checks everything that it opens again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import msgspec

from lockstep.control.handover import Takeover, request_handover
from lockstep.control.heartbeat import Phase, is_writer_alive, read_heartbeat
from lockstep.declare.discovery import digest_code
from lockstep.declare.stream import AnyStream, format_integrity
from lockstep.declare.transform import find_migration
from lockstep.engine.driver.import_roots import find_code_version
from lockstep.engine.driver.lookup_pins import find_newest_versions
from lockstep.engine.driver.topic_history import Instant, TopicHistory
from lockstep.errors import Fenced, KafkaError, LockstepError, StreamHeld, TableError, format_some
from lockstep.integrity.base import IntegrityClass, OnGrowth, Suspend
from lockstep.integrity.once import Once
from lockstep.integrity.resume_options import StreamHalted
from lockstep.integrity.strict import Strict
from lockstep.integrity.verdict import Judgement
from lockstep.kafka.admin import ClusterAdmin, Topic
from lockstep.kafka.audit import find_compacted
from lockstep.kafka.topic_identity import is_named
from lockstep.model.fault import Fault
from lockstep.model.position import SegmentRef, TopicIdPartition
from lockstep.model.table_schema import make_table_schema
from lockstep.model.tuning import DEFAULT_TUNING, Tuning
from lockstep.state.changelog import SegmentHeader, StateDamaged, read_header
from lockstep.state.codec import StateSchema
from lockstep.state.values import read_versions
from lockstep.storage import find_storage
from lockstep.table import side_tables
from lockstep.table.commit import Committed, Deployed, OutputLog, Writer, commit_claim
from lockstep.table.create import evolve_tables, open_tables
from lockstep.table.head import Desired, Head, ViolationPolicy
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_positions
from lockstep.table.parquet import find_wrong_files, list_named_files
from lockstep.table.positions import find_retired_topics, read_position
from lockstep.table.schema_evolution import find_defaulted_columns

LOG = logging.getLogger("lockstep")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a run, and its effect on the desired state.

    Attributes:
        cause: Cause of the start; stored in the ledger.
        run_id: Dagster's id of the run, or one generated here.
        automatic: Launched by a sensor, not a person: the run writes only while the desired state allows it, and does
            not change it.
        adopts_topics: A never-ending run adopts new topics even if the stream leaves them to a sensor.
        desired_version: `Head.desired_version` when the run was requested; a newer stop prevails, and the run ends.
            None takes the version at its first read of the table.
        tuning: Intervals, attempts and sizes.
    """

    cause: str = "started by hand"
    run_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    automatic: bool = False
    adopts_topics: bool = False
    desired_version: int | None = None
    tuning: Tuning = DEFAULT_TUNING

    def desires(self, *, never_ending: bool) -> Desired | None:
        """The desired state that the claim sets; None leaves it unchanged."""
        return Desired.RUNNING if never_ending and not self.automatic else None


BY_HAND = Launch()


class NotWanted(Exception):  # not an error: the desired state changed between the request for a run and its claim
    """The run was stopped before it claimed, or it is automatic and the desired state does not allow it."""


class StartCancelled(Exception):  # not an error
    """The run was asked to stop before it claimed: it leaves a writer that is there at work."""


class WriterClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a claim.

    Attributes:
        writer: Identity of the writer.
        head: The head after the claim.
        output: Handle on the output table.
        known: Newest ledger row of every partition ever read.
        cause: Why the run started: how the previous writer was found, and what launched this run.
    """

    writer: Writer
    head: Head
    output: OutputLog
    known: dict[TopicIdPartition, LedgerRow]
    cause: str


class WriterStartup:
    """Checks for a living writer while the Spark session starts, so that a restart waits only once."""

    def __init__(
        self,
        stream: AnyStream,
        folders: StreamFolders,
        cluster_id: str,
        *,
        launch: Launch = BY_HAND,
        never_ending: bool = False,
    ) -> None:
        """Read the table.

        Raises:
            StreamHalted: The stream waits for an operator.
            StreamHeld: The stream is held by an operator.
            NotWanted: The run is automatic and the desired state does not allow it, or it was stopped already.
            TableError: The table does not match its head.
            LookupUnusable: A lookup table is missing, or has other columns than declared.
        """
        self._launch = launch
        self._never_ending = never_ending
        self._folders = folders
        self._timeout = stream.limits.handover_timeout_seconds
        self._schema = make_table_schema(stream.types.row)
        self._defaulted = find_defaulted_columns(stream.types.row)
        self.output = open_tables(
            folders,
            self._schema,
            cluster_id,
            defaulted=self._defaulted,
            keeps_late=stream.integrity.keeps_late,
            has_archive=stream.archive is not None,
        )
        self.head = self.output.base().head
        self._refuse(self.head)
        find_newest_versions(stream, folders)
        self._stream = stream
        self._known = read_positions(folders, self.head)
        check_state_types(stream, folders, self._known.values())
        self._deployed = Deployed(
            find_code_digest(stream),
            find_policy(stream.integrity),
            format_integrity(stream.integrity),
            find_code_version(stream),
        )
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="startup")
        self._lives = self._pool.submit(is_writer_alive, folders.control, self.head.epoch)
        self._whole = self._pool.submit(refuse_torn, folders)

    def check_topics(self, admin: ClusterAdmin, history: TopicHistory) -> None:
        """Refuse topics that the declaration does not allow; a cluster that does not answer is asked after the claim.

        The history starts here: a topic that is deleted during a handover was observed by the previous run or by this
        run.

        Raises:
            LockstepError: See `check_topics_fit`.
        """
        known = self._known.values()
        with suppress(KafkaError):
            names = self._stream.topics.select(admin.topic_names().union(row.topic for row in known))
            asked = Instant.now()
            view = admin.view(names - find_retired_topics(known))
            history.note(view, asked, Instant.now())
            check_topics_fit(self._stream, view.topics, known)

    def claim(self, cancelled: Callable[[], bool]) -> WriterClaim:
        """Become the writer.

        1. Ask a living writer to hand over; do not wait for a dead one.
        2. Claim: compare-and-swap of the epoch that was seen.
        3. Bring the ledger forward, if the previous run died between the two commits.
        4. Add columns that the declared types have and the tables lack; read the positions.

        Raises:
            Fenced: Another run claimed at the same moment.
            StartCancelled: The run is to end.
            StreamHalted, StreamHeld, NotWanted: As above, since the first read.
            TableError: The ledger does not match the head, or files that the table references are missing.
        """
        self._whole.result()
        takeover = self._take_over(cancelled)  # 1
        if cancelled():
            raise StartCancelled
        cause = f"{takeover.value}; {self._launch.cause}{self._describe_code()}"
        landed = self._claim(cause)  # 2
        writer = Writer(epoch=landed.head.epoch, generation=landed.head.generation)
        self._catch_up(landed.head, writer)  # 3
        self._grow(writer)  # 4
        return WriterClaim(
            writer=writer,
            head=landed.head,
            output=self.output,
            known=read_positions(self._folders, landed.head),
            cause=cause,
        )

    def _take_over(self, cancelled: Callable[[], bool]) -> Takeover:
        lives = self._lives.result()
        self._pool.shutdown()
        if self.head.epoch == 0:
            return Takeover.FIRST
        if lives and not cancelled():
            return request_handover(self._folders.control, self.head.epoch, self._timeout, cancelled)
        heartbeat = read_heartbeat(self._folders.control, self.head.epoch)
        if heartbeat is None or heartbeat.phase is Phase.ENDED:
            return Takeover.ENDED
        return Takeover.DEAD

    def _catch_up(self, head: Head, writer: Writer) -> None:
        try:
            side_tables.SideLogs(self._folders).catch_up(head)
        except TableError:
            check_not_overtaken(self.output, writer)
            raise

    def _grow(self, writer: Writer) -> None:
        changed = evolve_tables(self.output, self._folders, writer, self._schema, self._defaulted)
        if changed:
            LOG.info("table of %s: %s", self._folders.stream, changed)

    def _claim(self, cause: str) -> Committed:
        desired = self._launch.desires(never_ending=self._never_ending)
        epoch = self.head.epoch
        reason = self._launch.cause
        table_id = self.output.table_id
        return self.output.commit(
            commit_claim(
                epoch,
                table_id,
                self._refuse,
                desired=desired,
                reason=reason,
                cause=cause,
                deployed=self._deployed,
            )
        )

    def _describe_code(self) -> str:
        """That the fold's code is not that of the run before, and the version of the code, for the history."""
        text = ""
        code = self.head.code
        if code is not None and self._deployed.code_digest not in {"", code.digest}:
            text += "; new code"
        if self._deployed.version is not None:
            text += f"; {self._deployed.version}"
        return text

    def _refuse(self, head: Head) -> None:
        # Requested before the halt, which the run that halted has reported.
        if self._launch.automatic and head.desired is Desired.HALTED:
            raise NotWanted(f"{head.stream} is {head.desired.value} ({head.reason})")
        check_not_halted(head)
        if head.desired is Desired.HELD:
            raise StreamHeld(head.stream, head.reason)
        allowed = not self._launch.automatic or _allowed(head.desired, never_ending=self._never_ending)
        if (head.epoch and not allowed) or self._stopped_meanwhile(head):
            raise NotWanted(f"{head.stream} is {head.desired.value} ({head.reason})")

    def _stopped_meanwhile(self, head: Head) -> bool:
        """Whether a stop is newer than the request to run, by table versions, not by clocks."""
        asked = self._launch.desired_version
        requested = self.head.desired_version if asked is None else asked
        return head.desired is Desired.STOPPED and head.desired_version > requested


def check_state_types(stream: AnyStream, folders: StreamFolders, rows: Iterable[LedgerRow]) -> tuple[str, ...]:
    """Compare the declared state type, and the integrity class's buffer, with those of all stored state.

    Args:
        stream: The declaration.
        folders: Folders of the stream's tables.
        rows: The newest ledger row of every partition.

    Returns:
        The differences that `migrate` must handle, each once; empty if the declared type reads all.

    Raises:
        StateTypeChanged: The declared type cannot read some stored state, and there is no `migrate`.
        IntegrityClassChanged: Some state may hold buffered messages that the declared class would never apply.
    """
    migration = find_migration(stream.transform)
    buffers = stream.integrity.buffer
    schema: StateSchema[object] = StateSchema(stream.types.stored, migration, buffers)
    migrated: dict[str, None] = {}
    for header, where in _stored(folders, rows):
        shapes = read_versions(header).shapes
        schema.accept(shapes, where)
        schema.accept_buffers(header.buffers, where)
        for name, shape in shapes.items():
            migrated |= dict.fromkeys(map(str, schema.differing(name, shape)))
    return tuple(migrated)


def _stored(folders: StreamFolders, rows: Iterable[LedgerRow]) -> Iterable[tuple[SegmentHeader, str]]:
    """The newest header of each partition's state; unreadable files are left to the task that needs them."""
    stored = list[tuple[LedgerRow, SegmentRef]]()
    for row in rows:
        segment = read_position(row).state
        if segment is not None:
            stored.append((row, segment))
    headers = find_storage(folders.state).map_files(partial(_try_read_header, folders), stored)
    for (row, _), header in zip(stored, headers, strict=True):
        if header is not None:
            yield header, f"the state of {row.topic}/{row.partition} (batch {row.batch})"


def _try_read_header(folders: StreamFolders, stored: tuple[LedgerRow, SegmentRef]) -> SegmentHeader | None:
    try:
        return read_header(folders.state, stored[1])
    except StateDamaged:
        return None


def find_code_digest(stream: AnyStream) -> str:
    """Digest of the code of the fold; empty if it is not in files, for example in an archive."""
    try:
        return digest_code(stream)
    except OSError:
        return ""


def find_policy(integrity: IntegrityClass) -> ViolationPolicy:
    """The policy of a class on violations, as the head records it."""
    restarts = getattr(integrity, "on_growth", None) is OnGrowth.RESTART_SESSIONS
    return ViolationPolicy(isinstance(integrity.on_violation, Suspend), restarts)


def _allowed(desired: Desired, *, never_ending: bool) -> bool:
    """Whether an automatic run may write under a desired state."""
    return desired is Desired.RUNNING or (desired is Desired.BOUNDED and not never_ending)


def check_not_halted(head: Head) -> None:
    """Refuse a halted stream: only an operator's resume lets it continue.

    Raises:
        StreamHalted: With the evidence that was committed with the halt.
    """
    if head.desired is Desired.HALTED:
        raise StreamHalted(head.stream, head.findings)


def refuse_torn(folders: StreamFolders) -> None:
    """Check the table's files: a root that was copied while it was written may lack some.

    Raises:
        TableError: Files of the table are missing, or have another size.
    """
    wrong = find_wrong_files(list_named_files(folders.table))
    if wrong:
        raise TableError(
            f"{folders.table} names {len(wrong)} files that are missing or of another size: {format_some(wrong)}",
            next_step=f"lockstep repair {folders.stream}; restore them from a copy: readers fail until then",
        )


def check_not_overtaken(output: OutputLog, writer: Writer) -> None:
    """Refuse to write when side tables are ahead of this writer: they belong to a newer writer.

    Raises:
        Fenced: There is a newer writer.
    """
    holder = output.base().head.epoch
    if holder != writer.epoch:
        raise Fenced(writer.epoch, holder)


def check_topics_fit(stream: AnyStream, topics: Mapping[str, Topic], known: Iterable[LedgerRow]) -> None:
    """Refuse topics that the stream's class or limits do not allow, or that are identified otherwise than before.

    Args:
        stream: The declaration.
        topics: Kafka's topics of the stream, by name.
        known: Newest ledger rows; those of topics that are not among these do not count.

    Raises:
        LockstepError: Names the topics and what to change.
    """
    if len(topics) > stream.limits.topics:
        raise LockstepError(
            f"pattern {stream.topics.pattern!r} matches {len(topics)} topics, the limit is {stream.limits.topics}",
            next_step="correct the pattern, or raise Limits(topics=...) if all of them are meant",
        )
    _check_class_fits(stream.integrity, topics)
    _check_identity_kept(known, topics)


def _check_class_fits(integrity: IntegrityClass, topics: Mapping[str, Topic]) -> None:
    unfit = find_compacted(topics)
    if unfit and _needs_every_message(integrity):
        raise LockstepError(
            f"topics {', '.join(unfit)} are compacted: the class does not tolerate messages gone from the middle",
            next_step="set cleanup.policy=delete on the topics, or exclude them with Topics(exclude=...)",
        )
    names = sorted(topic.name for topic in topics.values() if is_named(topic.topic_id))
    if names and isinstance(integrity, (Strict, Once)):
        raise LockstepError(
            f"topic {names[0]} (one of {len(names)}) is identified by its name (kafka.topic_identity): a re-created "
            f"topic would be read from the old position, and {type(integrity).__name__} promises every message",
            next_step="declare Ordered, FuzzyWindow or NoIntegrity, or use brokers with topic ids",
        )


def _check_identity_kept(known: Iterable[LedgerRow], topics: Mapping[str, Topic]) -> None:
    for row in known:
        if row.topic in topics and is_named(row.topic_id) is not is_named(topics[row.topic].topic_id):
            raise LockstepError(
                f"the table knows topic {row.topic} as {row.topic_id}, and kafka.topic_identity makes it "
                f"{topics[row.topic].topic_id}: all of it would be read again",
                next_step="set kafka.topic_identity as it was (docs/brokers.md)",
            )


def _needs_every_message(integrity: IntegrityClass) -> bool:
    return integrity.judge(Fault.HOLE) is Judgement.VIOLATION
