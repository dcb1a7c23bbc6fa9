"""The report of a proof: invariants, the violations of each, and the proven extent of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

import msgspec

LISTED_VIOLATIONS_MAX = 1_000
"""Violations listed in full; further ones are only counted. One cause often breaks every row behind it."""


class Invariant(Enum):
    """The proven invariants. The names are those of docs/verify.md."""

    ACCOUNTED = "I1"
    ORDER = "I2"
    FOLD = "I3"
    SIDE_TABLES = "I8"
    REPLAY = "I9"


MEANING = {
    Invariant.ACCOUNTED: "every offset is in exactly one place",
    Invariant.ORDER: "rows are in order",
    Invariant.FOLD: "rows, state and counts are the fold of the log",
    Invariant.SIDE_TABLES: "side tables are what the commits name",
    Invariant.REPLAY: "the rows replay to the state",
}


class ViolationKind(Enum):
    """Kinds of violation. The value is the name for people; `invariant` is the broken invariant."""

    RANGE_GAP = "offsets skipped between batches"
    RANGE_OVERLAP = "offsets read by two batches"
    NEVER_READ = "messages never read"
    LEFT_UNREAD = "topic left before its end was read"
    PARTITION_UNKNOWN = "partition that the topic does not have"
    TOPIC_DIFFERS = "wrong topic in the ledger"
    POSITION_LOST = "position that a start would not find"
    HOLE_UNEXPLAINED = "hole not in the ledger"
    HOLE_FALSE = "hole where there is a message"
    HOLE_CAUSE = "wrong cause of a hole"
    QUARANTINE_MISSING = "missing from quarantine"
    QUARANTINE_EXTRA = "wrongly in quarantine"
    QUARANTINE_AND_ROWS = "in quarantine and in rows"
    QUARANTINE_DOUBLED = "twice in quarantine"
    QUARANTINE_CHANGED = "quarantine row changed"
    LATE_MISSING = "missing from the late table"
    LATE_EXTRA = "wrongly in the late table"
    LATE_DOUBLED = "twice in the late table"
    LATE_CHANGED = "row of the late table changed"
    ROW_UNCLAIMED = "row of offsets that the ledger never read"
    ROW_ORDER = "rows out of order"
    ROW_DOUBLED = "row doubled"
    SESSION_IN_TWO_PARTITIONS = "session in two partitions"
    ROW_MISSING = "row missing"
    ROW_EXTRA = "row that the fold does not give"
    ROW_CHANGED = "row changed"
    ROW_UNREADABLE = "row with a time that readers cannot return"
    STATE_DIFFERS = "stored state is not the fold"
    STATE_DAMAGED = "stored state unreadable"
    COUNT_DIFFERS = "wrong count in the ledger"
    TIME_DIFFERS = "wrong time in the ledger"
    WATERMARK_DIFFERS = "wrong watermark in the ledger"
    SUSPENSION_DIFFERS = "wrong suspension in the ledger"
    PAST_VIOLATION = "read past a violation"
    SIDE_FILE_MISSING = "side table lacks a file"
    SIDE_FILE_FOREIGN = "side table has a file that no commit names"
    SIDE_FILE_CHANGED = "side table file changed"
    LEDGER_ROW_DOUBLED = "two ledger rows of a partition in one batch"
    LEDGER_ROW_FOREIGN = "ledger row of another batch"
    DATA_FILE_DAMAGED = "data file missing or changed"
    ORIGIN_DIFFERS = "shadow did not begin with the state of its batch"
    REPLAY_DIFFERS = "rows do not replay to the state"
    ARCHIVE_DIFFERS = "archive is not what the ledger says"

    @property
    def invariant(self) -> Invariant:
        """The invariant that it breaks."""
        return _INVARIANTS[self]


_K = ViolationKind
_INVARIANTS = {
    **dict.fromkeys(ViolationKind, Invariant.ACCOUNTED),
    **dict.fromkeys((_K.ROW_ORDER, _K.ROW_DOUBLED, _K.SESSION_IN_TWO_PARTITIONS), Invariant.ORDER),
    **dict.fromkeys((_K.ROW_MISSING, _K.ROW_EXTRA, _K.ROW_CHANGED, _K.ROW_UNREADABLE), Invariant.FOLD),
    **dict.fromkeys((_K.STATE_DIFFERS, _K.STATE_DAMAGED, _K.COUNT_DIFFERS, _K.ORIGIN_DIFFERS), Invariant.FOLD),
    **dict.fromkeys((_K.TIME_DIFFERS, _K.WATERMARK_DIFFERS, _K.SUSPENSION_DIFFERS, _K.PAST_VIOLATION), Invariant.FOLD),
    **dict.fromkeys((_K.SIDE_FILE_MISSING, _K.SIDE_FILE_FOREIGN, _K.SIDE_FILE_CHANGED), Invariant.SIDE_TABLES),
    _K.REPLAY_DIFFERS: Invariant.REPLAY,
    **dict.fromkeys((_K.LEDGER_ROW_DOUBLED, _K.LEDGER_ROW_FOREIGN, _K.DATA_FILE_DAMAGED), Invariant.SIDE_TABLES),
    _K.ARCHIVE_DIFFERS: Invariant.SIDE_TABLES,
}


class InvariantStatus(Enum):
    """The result of an invariant, or of the whole proof."""

    PROVEN = "proven"
    VIOLATED = "violated"
    NOT_PROVEN = "not proven"
    LOST = "states lost"
    """Of the whole proof: all is proven, and some lost states are not accepted."""
    NOT_CLAIMED = "not claimed"
    """The stream does not promise it."""


class ViolationPlace(msgspec.Struct, frozen=True):
    """A partition of a topic, identified by topic id."""

    topic: str
    topic_id: str
    partition: int


class ProofViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One violation.

    Attributes:
        kind: Its kind.
        topic: Name of the topic; empty if a file is concerned.
        partition: Partition number.
        offset: First offset concerned.
        expected: The proof's result.
        found: The stored value.
    """

    kind: ViolationKind
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    expected: str = ""
    found: str = ""


class Violations:
    """Collects violations.

    Attributes:
        listed: The first violations, in full.
        counts: All, by kind.
    """

    def __init__(self) -> None:
        self.listed: list[ProofViolation] = []
        self.counts: Counter[ViolationKind] = Counter()

    def add(
        self, kind: ViolationKind, where: ViolationPlace | None, offset: int | None, expected: object, found: object
    ) -> None:
        """Record a violation."""
        self.counts[kind] += 1
        if len(self.listed) < LISTED_VIOLATIONS_MAX:
            place: dict[str, object] = {"topic": "", "partition": None, "offset": offset}
            if where is not None:
                place["topic"] = where.topic
                place["partition"] = where.partition
            self.listed.append(ProofViolation(kind=kind, expected=str(expected), found=str(found), **place))  # type: ignore[arg-type]

    def has(self, kind: ViolationKind, where: ViolationPlace) -> bool:
        """Whether a violation of a partition is among the listed ones."""
        place = (where.topic, where.partition)
        return any(each.kind is kind and (each.topic, each.partition) == place for each in self.listed)

    def savepoint(self) -> tuple[int, Counter[ViolationKind]]:
        """A marker to restore to."""
        return len(self.listed), self.counts.copy()

    def rollback(self, marked: tuple[int, Counter[ViolationKind]]) -> None:
        """Discard the violations recorded since a marker."""
        del self.listed[marked[0] :]
        self.counts = marked[1]

    def of(self, invariant: Invariant) -> int:
        """The number of violations of an invariant."""
        return sum(count for kind, count in self.counts.items() if kind.invariant is invariant)


class ProvenRange(msgspec.Struct, frozen=True, kw_only=True):
    """The proven extent of one partition.

    Attributes:
        topic: Name of the topic.
        topic_id: Kafka's topic id.
        partition: Partition number.
        proven_from: First offset read again; None if none was.
        until: First offset not committed.
        note: The limits of the proof; empty without any.
        replay: From which batch on the rows replay to the state, and why not from the first; empty without a limit.
    """

    topic: str
    topic_id: str
    partition: int
    proven_from: int | None
    until: int
    note: str = ""
    replay: str = ""


class InvariantResult(msgspec.Struct, frozen=True):
    """The result of one invariant.

    Attributes:
        invariant: Its name.
        meaning: Its meaning in a few words.
        status: Proven, violated, or not proven.
        checked: The compared data, with counts.
        violations: Number of violations.
    """

    invariant: Invariant
    meaning: str
    status: InvariantStatus
    checked: str
    violations: int


class LostInBatch(msgspec.Struct, frozen=True, kw_only=True):
    """States of one partition that a batch discarded, and nothing replaced or emitted them.

    Attributes:
        batch: The batch.
        topic: Name of the topic.
        partition: Partition number.
        offset: Offset of the first message by which one was discarded.
        cause: Why.
        sessions: Number of states.
        messages: Their messages that are in no row; None if the transform does not count them (`pending`).
        is_accepted: The declaration, an option of a resumption or `lockstep losses --accept` accepts it.
        detail: Error of the transform's own code, if any.
    """

    batch: int
    topic: str
    partition: int
    offset: int
    cause: str
    sessions: int
    messages: int | None
    is_accepted: bool
    detail: str = ""


class LossSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All states that a stream has lost.

    Attributes:
        sessions: Number of states.
        messages: Their messages, as far as they are known.
        open_sessions: The states whose loss no operator has accepted.
        open_messages: Their messages.
        last_batch: The newest batch with one of these; 0 without any.
        listed: The open ones by batch and partition, the first 1,000.
    """

    sessions: int = 0
    messages: int = 0
    open_sessions: int = 0
    open_messages: int = 0
    last_batch: int = 0
    listed: tuple[LostInBatch, ...] = ()


NO_LOSS = LossSummary()


def make_loss_summary(losses: Iterable[LostInBatch]) -> LossSummary:
    """The losses of a stream."""
    everything = sorted(losses, key=lambda loss: (loss.batch, loss.topic, loss.partition, loss.offset))
    unaccepted = [loss for loss in everything if not loss.is_accepted]
    return LossSummary(
        sessions=sum(loss.sessions for loss in everything),
        messages=sum(loss.messages or 0 for loss in everything),
        open_sessions=sum(loss.sessions for loss in unaccepted),
        open_messages=sum(loss.messages or 0 for loss in unaccepted),
        last_batch=max((loss.batch for loss in unaccepted), default=0),
        listed=tuple(unaccepted[:LISTED_VIOLATIONS_MAX]),
    )


class FollowerProof(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one follower: only its position is compared, not its rows.

    Attributes:
        kind: Kind of follower.
        name: Its name.
        status: Not proven if it may hold rows that are undone or erased; violated if the table contradicts its claim.
        claim: The extent that it claims to have read.
        reason: Reason of the status; empty if it is proven.
        next_step: The command to run; empty without a reason to.
    """

    kind: str
    name: str
    status: InvariantStatus
    claim: str
    reason: str = ""
    next_step: str = ""


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole proof.

    Attributes:
        stream: Name of the stream.
        status: Proven if every invariant is; violated if one is; lost if all are proven and no operator accepted the
            loss of a state.
        version: Version of the output table that was proven.
        generation: The lineage of batches.
        batch: Its last batch: the proof ends there, later commits are not read.
        messages: Number of messages read again.
        invariants: One by one.
        counts: Messages by outcome, according to the proof's own fold.
        violation_count: Number of all violations.
        violations: The first of them.
        scopes: Every partition.
        notes: Limits of the proof.
        cpu_seconds: CPU time of the proof.
        next_step: What to do next.
        losses: States that were lost.
        followers: The followers of the stream. Only a violated claim changes the status of the whole proof.
    """

    stream: str
    status: InvariantStatus
    version: int
    generation: int
    batch: int
    messages: int
    invariants: tuple[InvariantResult, ...]
    counts: dict[str, int]
    violation_count: int
    violations: tuple[ProofViolation, ...]
    scopes: tuple[ProvenRange, ...]
    notes: tuple[str, ...]
    cpu_seconds: float
    next_step: str
    losses: LossSummary = NO_LOSS
    followers: tuple[FollowerProof, ...] = ()
