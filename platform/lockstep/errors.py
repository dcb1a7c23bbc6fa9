"""Every error lockstep raises, in one tree.

LockstepError                 something a person must know; `next_step` says what to do
|- DeclarationError           a stream is declared wrong: field, value, what would be right
|- SettingsError              the settings file or environment is wrong
|- EnvironmentProblem         Java, jars, disk or network of this machine
|  |- LocalStateUnusable      the local disk cannot hold the hot copy of state (state/restore.py)
|  |- RegistryUnreachable     the schema registry could not answer: no verdict on any message
|  `- PortTaken               another process took a port of a rehearsal's broker (localdev/broker.py)
|- KafkaError                 Kafka could not be read; never means "no topics"
|- TableError                 the table, its log or a side table is not as the head says
|  |- CommitUnknown           a commit's answer was lost; only a new claim decides
|  |- ForeignCommit           somebody else committed to a table of a stream (table/foreign_commits.py)
|  |- TableReplaced           a table's folder was moved, deleted or set back under a run (table/foreign_commits.py)
|  |- HourClosed                  the hour of a planned batch was closed: it is planned again (table/commit.py)
|  |- CompactionRefused       some hours could not be compacted, the others are (compaction/run.py)
|  |- InputsGone              another compaction was faster (compaction/run.py)
|  |- OutOfOrder              rows of a partition do not follow each other (compaction/row_order.py)
|  `- ProofDiffers            a compacted file holds something else than its inputs (compaction/proof.py)
|- StateError                 state cannot be used
|  |- StateDamaged            a durable file is missing or any byte of it wrong (state/changelog.py)
|  |- StateTypeChanged        it was stored by a type that this one cannot read (state/codec.py)
|  |- StateNotOfItsType       a fold left what its state type cannot hold (state/codec.py)
|  `- MigrationFailed         `migrate` did not make today's state of a stored one (state/codec.py)
|- BatchTimeout               a batch was cancelled at its deadline; planned again (engine/driver/spark_job.py)
|- RowRejected                 a row holds a value that its column cannot (table/row_encoder.py)
|- RecordingError             a line of a recording is not of one (localdev/recordings.py)
|- Fenced                     a newer writer holds the table: this run may not commit
|- NoTable                    the stream has never run into this table root (operations/tables.py)
|- UnknownStream              no such stream is declared (operations/inspect/streams.py)
|- WrongQuery                 the SQL is wrong, or names what is not there (operations/query.py)
|- NoSuchSession              no session of that key has a state (operations/inspect/state.py)
|- NotRetained                the state as of a batch is not kept any more (operations/inspect/state.py)
|- NotInQuarantine            no message of that place is in quarantine (operations/quarantine.py)
|- ExportRefused              a file is there already, or cannot be written (operations/quarantine.py)
|- NoMessage                  no message is at that place, or none halts the stream (operations/inspect/message.py)
|- HousekeepingFailed         some steps failed, the others are done (operations/housekeeping.py)
|- WriterLives                nothing is mended beside a writer that works (operations/repair.py)
|- NotHalted                  a stream that is not halted was asked to resume (operations/resume.py)
|- UnansweredFindings                 a resumption leaves findings of the halt unanswered (operations/resume.py)
|- PositionMismatch                   what is accepted is not where the stream stands (operations/resume.py)
|- StartFailed                a run was asked for and does not write (orchestration/launch.py)
|- StreamHeld                 an operator holds the stream: no run may write until it is released
|- StreamHalted               halted; resumes after `lockstep resume` only (integrity/resume_options.py)
|  `- IntegrityLost           the promise of the stream's class is broken (integrity/resume_options.py)
`- Violation                  raised by a fold: what it checked does not hold

A test compares this drawing with the classes, each of which has an entry in docs/runbook.md.
Errors carry their parts as attributes, so that callers never parse a message, and the next
command to run, so that readers never search for it.
"""

from __future__ import annotations


class LockstepError(Exception):
    """Base of all errors of lockstep.

    Attributes:
        problem: What is wrong, in one sentence.
        next_step: What to do, usually a command.
    """

    def __init__(self, problem: str, *, next_step: str) -> None:
        super().__init__(problem, next_step)
        self.problem = problem
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.problem}\n  next: {self.next_step}"

    def __reduce__(self) -> tuple[object, ...]:
        # Spark sends errors from workers to the driver: rebuild from parts, not from arguments.
        return (_rebuilt, (type(self), dict(self.__dict__)))


class DeclarationError(LockstepError):
    """A declaration is wrong.

    Attributes:
        field: The declared field, for example `Stream.topics.pattern`.
        value: The value that was given.
    """

    def __init__(self, field: str, value: object, problem: str, next_step: str) -> None:
        super().__init__(f"{field} = {value!r}: {problem}", next_step=next_step)
        self.field = field
        self.value = value


class SettingsError(LockstepError):
    """A setting is missing or wrong; the message names its key, value and origin."""


class EnvironmentProblem(LockstepError):
    """This machine lacks something: Java, a jar, disk space, network."""


class RegistryUnreachable(EnvironmentProblem):
    """The schema registry does not answer, refuses or answers nonsense.

    It says nothing of the message whose schema was asked for: the batch is tried again.
    """


class KafkaError(LockstepError):
    """Kafka could not be read. Callers retry; nobody may conclude that there are no topics."""


class TableError(LockstepError):
    """The table is not what its head says, or belongs to another stream or writer."""


class CommitUnknown(TableError):
    """The store did not answer whether a commit landed. The run ends; the next claim decides."""


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
            next_step="nothing to do: the newer run goes on from the last committed batch",
        )
        self.mine = mine
        self.holder = holder


class StreamHeld(LockstepError):
    """A held stream was asked to run.

    Attributes:
        stream: The stream's name.
        reason: Why it is held, and by whom.
    """

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"stream {stream} is held: {reason}", next_step=f"lockstep start {stream} releases it")
        self.stream = stream
        self.reason = reason


class Violation(LockstepError):
    """Raised by a user's fold when what it verifies does not hold (for example a checksum).

    Attributes:
        expected: What the fold computed.
        found: What the message said.
        what: What was compared; the cause of the halt.
    """

    def __init__(self, expected: object, found: object, what: str = "checksum") -> None:
        super().__init__(
            f"{what}: expected {expected}, found {found}",
            next_step="`lockstep status STREAM` shows the halt and the command to resume",
        )
        self.expected = expected
        self.found = found
        self.what = what


def _rebuilt(kind: type[LockstepError], parts: dict[str, object]) -> LockstepError:
    error = kind.__new__(kind, parts["problem"], parts["next_step"])
    error.__dict__.update(parts)
    return error
