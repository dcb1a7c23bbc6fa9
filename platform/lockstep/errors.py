"""Every error lockstep raises, in one tree.

LockstepError                 base class; `next_step` names the remedy
|- DeclarationError           an invalid declaration: field, value, valid alternative
|  `- CallError               a declared class was called with other arguments than it has
|- SettingsError              the settings file or environment is wrong
|- EnvironmentProblem         Java, jars, disk or network of this machine
|  |- EngineLimit             a limit of the machine or of a library (engine/executor/limits.py)
|  |- JobCancelled            somebody cancelled a job of the run; planned again (engine/driver/executors.py)
|  |- LocalStateUnusable      the local disk cannot hold the local store (state/restore.py)
|  |- RegistryUnreachable     the schema registry could not answer: no verdict on any message
|  |- LookupNotBound          a lookup was read while no version was pinned (declare/lookup.py)
|  |- LookupUnusable          a lookup table is missing or not as declared (engine/executor/lookup_table.py)
|  |- NeedsFileSystem         an operation cannot work on tables in an object store (storage/base.py)
|  `- PortTaken               another process took a port of the local Kafka (features/localdev/broker.py)
|- TopicsWithoutIds           the brokers have no ids of topics (kafka/topic_identity.py)
|- KafkaError                 Kafka could not be read; never means "no topics"
|  `- KafkaUnreachable        no broker answered: an outage, which runs wait for
|- TableError                 the table, its log or a side table does not match the head
|  |- CommitUnknown           a commit's answer was lost; only a new claim decides
|  |- NotCommitted            the storage did not take a commit: it is full, or not writable
|  |- ArchiveLacks            the archive has not all offsets that the ledger claims (table/archive.py)
|  |- ForeignCommit           another program committed to a table of a stream (table/foreign_commits.py)
|  |- TableRootMissing        the table root of the settings does not exist (table/layout.py)
|  |- TableReplaced           a table's folder was moved, deleted or set back under a run (table/foreign_commits.py)
|  |- HourClosed              the hour of a planned batch was closed: it is planned again (table/commit.py)
|  |- NoSuchLoss              a loss that is not the newest one to be accepted (table/commit.py)
|  |- NotRewindable           a batch to which a rewind cannot go back any more (operations/past_batches.py)
|  |- ErasureOvertaken        a batch preceded an erasure that was planned without it (features/erase/commit.py)
|  |- CompactionRefused       some hours could not be compacted, the others are (features/compaction/run.py)
|  |- InputsGone              another compaction was faster (features/compaction/run.py)
|  |- OutOfOrder              rows of a partition are out of order (table/row_order.py)
|  `- ProofDiffers            a compacted file differs from its inputs (features/compaction/proof.py)
|- StateError                 state cannot be used
|  |- StateDamaged            a durable file is missing or damaged (state/changelog.py)
|  |- NotTranslatable         a state cannot continue in a mirrored cluster (state/translation.py)
|  |- StateTypeChanged        the declared type cannot read the stored state (state/codec.py)
|  |- IntegrityClassChanged   buffered messages in the state fit no other class (state/codec.py)
|  |- StateNotOfItsType       a fold left a value that its state type cannot hold (state/codec.py)
|  `- MigrationFailed         `migrate` did not make the declared type of a stored state (state/codec.py)
|- SparkGone                  the Spark of a host has ended: all its streams end (features/host/host.py)
|- SparkStopped               somebody stopped the Spark application of a run (engine/driver/executors.py)
|- ExecutorsGone              the Spark application has had no executor for long (engine/driver/executors.py)
|- BatchTimeout               a batch was cancelled at its deadline; planned again (engine/driver/spark_job.py)
|- RowRejected                a row holds a value that its column cannot (table/row_encoder.py)
|- RecordingError             a line of a recording is not of one (features/localdev/recordings.py)
|- Fenced                     a newer writer holds the table: this run may not commit
|  `- Overtaken               a command lost against a run or another command at the same moment
|- NoTable                    the stream has never run with this table root (operations/stream_table.py)
|- ReleaseUnusable            a release cannot be made or become current (features/deploy/releases.py)
|- CodeUnusable               the code of a project cannot be copied (user_code/files.py)
|  `- CopyChanged             the files of a copy were changed (user_code/copies.py)
|- ModuleBroken               a file of assets/ cannot be imported (declare/discovery.py)
|- ExtensionBroken            a module of the setting `extensions` cannot be used (feature.py)
|- UnknownStream              no such stream is declared (operations/inspect/streams.py)
|- WrongQuery                 the SQL is invalid, or names a missing table or column (operations/query.py)
|- NoSuchSession              no session with that key has a state (operations/inspect/state.py)
|- NotRetained                the state as of a batch is no longer kept (operations/inspect/state.py)
|- NotInQuarantine            no message at that offset is in quarantine (operations/quarantine.py)
|- ExportMismatch             the exported hours were written otherwise, or rewound (features/export/dataset.py)
|- ExportRefused              a file exists already, or cannot be written (operations/quarantine.py)
|- NoMessage                  no message is at that offset, or none halts the stream (operations/inspect/message.py)
|- NothingToInfer             a topic has no messages for which a stream can be inferred (features/inference/sample.py)
|- NewStreamRefused           a new stream cannot be written under its name (operations/project_streams.py)
|- NothingToTry               no message is where the stream would start (operations/inspect/trial.py)
|- HousekeepingFailed         some steps failed, the others are done (features/retention/housekeeping.py)
|- BackupOvertaken            files vanished while they were copied: no backup was made (features/copies/backup.py)
|- Refused                    a plan has obstacles, or differs from the plan that was shown (operations/plan_frame.py)
|- PathRefused              a manifest names a file that is none of its folder (storage/named_files.py)
|- CopyDamaged                a backup is not whole (features/copies/copied_files.py)
|- CopyInProgress             another process writes to the folder of a copy (features/copies/copied_files.py)
|- DeliveryFenced             a newer run of a delivery has claimed its target (declare/delivery_target.py)
|- DeliveryHalted             a delivery needs an operator (features/delivery/position.py)
|- RowUndeliverable           a target cannot hold a row (declare/delivery_target.py)
|- TargetInterrupted          a write to a target did not end (declare/delivery_target.py)
|- TargetRefused              a target cannot be used (declare/delivery_target.py)
|- UnknownDelivery            no such delivery is declared (features/delivery/deliver.py)
|- DeriveFailed               Spark could not run the query of a derived table (features/derived/derive.py)
|- DeriveInProgress           another run writes the derived table (features/derived/derive.py)
|- UnknownDerived             no such derived table is declared (features/derived/derive.py)
|- UnknownFollower            no follower of that name has a position (operations/followers.py)
|- ShadowCodeChanged          the code of a shadow differs from its start (features/history/shadow.py)
|- NotAShadow                 a stream that is not a shadow of the other (features/history/shadow.py)
|- NotHalted                  resume of a stream that is not halted (operations/resume.py)
|- ResumptionUnanswered       a run did not resume halted topics (operations/resume.py)
|- UnansweredFindings         a resume does not cover all findings of the halt (operations/resume.py)
|- PositionMismatch           an accepted option does not match the stream's position (engine/driver/resumption.py)
|- StartFailed                a requested run does not write (orchestration/launch.py)
|- StreamHeld                 an operator holds the stream: no run may write until it is released
|- StreamHalted               halted; resumes after `lockstep resume` only (integrity/resume_options.py)
|  |- IntegrityLost           the promise of the stream's class is broken (integrity/resume_options.py)
|  |  `- TopicsHalted          a bounded run has read all but halted topics (engine/driver/halted_topics.py)
`- Violation                  raised by a fold whose check failed
   `- RuleViolated            a row violates a rule that quarantines or fails (declare/rules.py)

Errors of stored files are those of Python's files (`OSError`); an object store's are `StoreFailed`, with a next step.

A test compares this drawing with the classes, each of which docs/runbook.md names.
Errors carry their parts as attributes, so that callers never parse a message, and the next
command to run, so that readers never search for it.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

_STREAM = re.compile(r"\bSTREAM\b")


class LockstepError(Exception):
    """Base of all errors of lockstep.

    Attributes:
        problem: The problem, in one sentence.
        next_step: The remedy, usually a command.
    """

    def __init__(self, problem: str, *, next_step: str) -> None:
        super().__init__(problem, next_step)
        self.problem = problem
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.problem}\n  next: {self.next_step}"

    def name_stream(self, stream: str) -> None:
        """Put a stream's name in place of STREAM into the next step; an empty name is unknown here, too."""
        if stream:
            self.next_step = _STREAM.sub(stream, self.next_step)

    def __reduce__(self) -> tuple[object, ...]:
        # Spark sends errors from workers to the driver: rebuild from parts, not from arguments.
        return (_rebuilt, (type(self), dict(self.__dict__)))


@contextmanager
def name_stream(stream: str) -> Generator[None]:
    """Put a stream's name in place of STREAM into the next step of an error.

    What reads state or files does not know whose they are; a run and a command of a stream do.
    """
    try:
        yield
    except LockstepError as error:
        error.name_stream(stream)
        raise


class DeclarationError(LockstepError):
    """A declaration is invalid.

    Attributes:
        field: The declared field, for example `Stream.topics.pattern`.
        value: The value that was given.
    """

    def __init__(self, field: str, value: object, problem: str, next_step: str) -> None:
        super().__init__(f"{field} = {value!r}: {problem}", next_step=next_step)
        self.field = field
        self.value = value


class CallError(DeclarationError, TypeError):
    """A declared class was called with other arguments than it has."""

    def __init__(self, field: str, problem: str, next_step: str) -> None:
        super(DeclarationError, self).__init__(f"{field}: {problem}", next_step=next_step)
        self.field = field
        self.value = None


class SettingsError(LockstepError):
    """A setting is missing or wrong; the message names its key, value and origin."""


class EnvironmentProblem(LockstepError):
    """This machine lacks something: Java, a jar, disk space, network."""


class StoreFailed(OSError):
    """An object store did not carry out a request: an error as that of a file, with the next step.

    Attributes:
        next_step: What to do.
    """

    def __init__(self, number: int, reason: str, address: str, next_step: str = "") -> None:
        super().__init__(number, reason, address)
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}\n  next: {self.next_step}"


class StoreRefused(StoreFailed, PermissionError):
    """An object store does not know the credentials, or does not let them do it."""


class RegistryUnreachable(EnvironmentProblem):
    """The schema registry does not answer, refuses or answers nonsense.

    It proves nothing about the message whose schema was requested: the batch is tried again.
    """


class KafkaError(LockstepError):
    """Kafka could not be read. Callers retry and must never conclude that there are no topics."""


class KafkaUnreachable(KafkaError):
    """No broker answered, or none was able to: an outage. A refusal, which only an operator can end, is none."""


class TableError(LockstepError):
    """The table does not match its head, or belongs to another stream or writer."""


class CommitUnknown(TableError):
    """The store did not answer whether a commit landed. The run ends; the next claim decides."""


class NotCommitted(TableError):
    """The storage did not take a commit: nothing of it is in the table."""


class StateError(LockstepError):
    """A durable state file cannot be used."""


class Fenced(LockstepError):
    """Another run has claimed the table with a higher epoch.

    Attributes:
        mine: The epoch of this run.
        holder: The epoch that holds the table.
    """

    def __init__(self, mine: int, holder: int) -> None:
        super().__init__(
            f"writer epoch {mine} is fenced: epoch {holder} holds the table",
            next_step="nothing to do: the newer run continues from the last committed batch",
        )
        self.mine = mine
        self.holder = holder


class Overtaken(Fenced):
    """A command that lost against a run, or another command, which claimed the table at the same moment.

    Attributes:
        stream: Name of the stream.
    """

    def __init__(self, stream: str, what: str, fenced: Fenced) -> None:
        LockstepError.__init__(
            self,
            f"{what} of stream {stream}: a run or another command claimed the table meanwhile; nothing was changed",
            next_step=f"lockstep history {stream} shows the faster change; then repeat the request, if still needed",
        )
        self.stream = stream
        self.mine = fenced.mine
        self.holder = fenced.holder


class StreamHeld(LockstepError):
    """Run of a held stream.

    Attributes:
        stream: The stream's name.
        reason: Reason and user of the hold.
    """

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"stream {stream} is held: {reason}",
            next_step=f"lockstep start {stream} releases and starts it; without Dagster: lockstep stop {stream}, then "
            f"lockstep run {stream}",
        )
        self.stream = stream
        self.reason = reason


class Violation(LockstepError):
    """Raised by a user's fold when a check fails (for example a checksum).

    Attributes:
        expected: Value that the fold computed.
        found: Value in the message.
        what: Compared quantity; the cause of the halt.
    """

    def __init__(self, expected: object, found: object, what: str = "checksum") -> None:
        super().__init__(
            f"{what}: expected {expected}, found {found}",
            next_step="`lockstep status STREAM` shows the halt and the command to resume",
        )
        self.expected = expected
        self.found = found
        self.what = what


def format_some(items: Sequence[str], most: int = 5) -> str:
    """The first items of a list for a text, and the number of further ones; empty without any."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def _rebuilt(kind: type[LockstepError], parts: dict[str, object]) -> LockstepError:
    error = kind.__new__(kind, parts["problem"], parts["next_step"])
    error.__dict__.update(parts)
    return error
