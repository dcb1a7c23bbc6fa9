"""The head: the state of a stream that each commit of its output table records in its metadata.

It contains all that a start needs. `delta_log` reads and appends the entries that carry it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from lockstep.errors import TableError
from lockstep.feature import list_installed
from lockstep.model.code_version import CodeVersion
from lockstep.model.decoding import decode_json
from lockstep.model.finding import Finding
from lockstep.table.losses import NONE_LOST, LostStates

FIRST_GENERATION = FIRST_BATCH = 1

HEAD_VERSION = 2
"""Version 1 recorded `running` after a run of any kind; see `Head.decode`."""


NO_VERSION = -1
"""Version of the table before its first batch, if the log no longer has it: it has no files."""


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

    def describe(self) -> str:
        """Describe it in one line: extent, reason and operator."""
        return f"rows of hours before {self.hour} ({self.cause})"


class QuarantineRetention(Retention, frozen=True, kw_only=True):
    """The newest retention of quarantine and late table: their messages of all batches up to `batch` are dropped.

    It is committed before their files are removed, so that no message is ever missing without a reason.

    Attributes:
        quarantined: Messages that all retentions together have dropped from the quarantine.
        late: Likewise from the late table.
        unknown_up_to: Last dropped batch of which the fold cannot find out again what became of each message; 0 for
            none. A quarantined message may have killed its worker, or its schema or state was refused at that time.
    """

    quarantined: int = 0
    late: int = 0
    unknown_up_to: int = 0

    def describe(self) -> str:
        """Describe it in one line: extent, reason and operator."""
        return f"quarantined and late messages of batches up to {self.batch} ({self.cause})"


class Lineage(msgspec.Struct, frozen=True):
    """A generation that ended: its batches are valid up to `last_batch`."""

    generation: int
    last_batch: int


class Savepoint(msgspec.Struct, frozen=True):
    """A batch that stays restorable until the savepoint is deleted, at any rewind floor.

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
    """A rewind since the rewind floor. Its version stays loadable: it may name files that the floor's version does not.

    Attributes:
        batch: The batch that is the rewind.
        version: The version of the output table that it made.
        to_batch: The batch to which it went back.
        undone: The last batch before it; the batches from `to_batch` to this batch were undone.
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
        is_finished: Whether quarantine and late table have been rewritten, too.
    """

    digest: str
    topic: str
    batch: int
    version: int
    at: float
    cause: str
    is_finished: bool = False

    def describe(self) -> str:
        """Describe it in one line: session, reason, operator and progress."""
        where = f" of topic {self.topic}" if self.topic else ""
        unfinished = "" if self.is_finished else "; quarantine and late table follow"
        return f"session with digest {self.digest}{where} ({self.cause}){unfinished}"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a shadow: a batch of another stream, whose state and positions its first batch inherited.

    Attributes:
        stream: Name of that stream.
        table_id: Delta's id of its output table.
        batch: The batch.
        digest: SHA-256 of the inherited state and positions; `lockstep verify` computes it again.
        code: Folder, file or module of the declaration; empty if `assets/` declares the shadow.
        code_digest: Digest of the fold's source.
        at: Its start, in seconds since 1970 (UTC).
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
    """The savepoint with which a stream started in another table root: its first batch inherited state and positions.

    Attributes:
        stream: Name of the stream.
        savepoint: Name of the savepoint.
        cluster_id: Id of the Kafka cluster from which it was read.
        table_id: Delta's id of the output table to which the savepoint belongs.
        batch: The batch of the savepoint.
        mirror: In a mirrored cluster: MirrorMaker's alias of the cluster above, whose topic ids and offsets differ.
        digest: SHA-256 of the inherited state and positions; `lockstep verify` computes it again.
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
        to_batch: The batch from which the shadow started: rows up to it stayed.
        first: The first batch of the promotion, with the positions of `to_batch`.
        batch: The last batch, with the positions of the shadow. The batches in between have neither a log entry nor a
            separate state.
    """

    shadow: str
    to_batch: int
    first: int
    batch: int


class FoldCode(msgspec.Struct, frozen=True):
    """The fold's code that the writer runs, as of its claim.

    Attributes:
        digest: `digest_code` of the stream.
        first_batch: First batch that this code may have written: earlier batches are of other or of unknown code.
    """

    digest: str
    first_batch: int


class ViolationPolicy(msgspec.Struct, frozen=True):
    """What happens on a violation, as declared.

    Attributes:
        suspends: The session of the violation is suspended; otherwise the stream halts.
        restarts_on_growth: The sessions of a topic that gets partitions are suspended, also without `suspends`.
    """

    suspends: bool = False
    restarts_on_growth: bool = False


class PolicyChange(msgspec.Struct, frozen=True):
    """A policy and an integrity class, as of the first claim with them.

    Attributes:
        first_batch: First batch that may have been written under them.
        policy: The policy.
        integrity: The class without its policy, as source text; empty if it was not recorded.
    """

    first_batch: int
    policy: ViolationPolicy
    integrity: str = ""


class HaltedTopic(msgspec.Struct, frozen=True):
    """A topic that is not read until an operator resumes it, while the stream continues.

    Attributes:
        topic: Its name.
        topic_id: Kafka's id of it.
        batch: The batch that halted it.
        findings: The evidence.
    """

    topic: str
    topic_id: str
    batch: int
    findings: tuple[Finding, ...]


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
        desired_version: Version of the output table at which an operator last set the desired state; 0 for never.
        resumes_as: While halted: the desired state after the resumption.
        findings: The evidence, while halted.
        halted_topics: Topics that are not read, while the stream continues: it is degraded.
        ledger: The ledger file of the last batch.
        quarantine: The newest addition to the quarantine.
        late: The newest addition to the late table.
        archive: The newest addition to the archive.
        full_ledger_batch: Newest batch whose ledger file holds the positions of all partitions.
        full_ledger_at: Its time, in seconds since 1970 (UTC).
        accepts_burst: An operator accepted a quarantine burst that is not over yet.
        rewind_floor: Oldest batch that a rewind may go back to, apart from savepoints.
        rewinds: Rewinds since that batch, oldest first.
        savepoints: Batches that stay restorable, by name.
        last_resumption: The newest resumption; None before the first.
        retention: The newest retention; None before the first.
        quarantine_retention: The newest retention of quarantine and late table; None before the first. A rewind does
            not undo it.
        erasure: The newest erasure of a session; None before the first.
        origin: Of a shadow: its origin.
        imported: Of a stream that started with a savepoint from another table root: that savepoint.
        promotion: The newest promotion of a shadow; None before the first.
        code_version: The version of the user's code that the newest run imports; None if it imports files that may
            change, and before the first claim.
        code: The code that writes; None before the first claim of a run, or if it is not in files.
        lost: States that were discarded, and the unaccepted part of them.
        policies: The policies on violations and the classes, oldest first: `lockstep verify` judges each batch by the
            policy and the class under which it was written.
        features: The features that the table needs, with the version of each. It is written by `encode` and judged by
            `decode`; a head in memory has none.
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
    desired_version: int = 0
    resumes_as: Desired = Desired.BOUNDED
    findings: tuple[Finding, ...] = ()
    halted_topics: tuple[HaltedTopic, ...] = ()
    ledger: SideFile | None = None
    quarantine: SideBatch | None = None
    late: SideBatch | None = None
    archive: SideBatch | None = None
    full_ledger_batch: int = 0
    full_ledger_at: float = 0.0
    accepts_burst: bool = False
    rewind_floor: int = 0
    rewinds: tuple[Rewind, ...] = ()
    savepoints: tuple[Savepoint, ...] = ()
    last_resumption: Resumption | None = None
    retention: Retention | None = None
    quarantine_retention: QuarantineRetention | None = None
    erasure: Erasure | None = None
    origin: Origin | None = None
    imported: Imported | None = None
    promotion: Promotion | None = None
    code_version: CodeVersion | None = None
    code: FoldCode | None = None
    lost: LostStates = NONE_LOST
    policies: tuple[PolicyChange, ...] = ()
    features: dict[str, int] = {}
    version: int = 1

    @property
    def valid_batches(self) -> dict[int, int]:
        """The last valid batch of each generation; rewinds undid later batches, and generations not listed."""
        return {ended.generation: ended.last_batch for ended in self.lineage} | {self.generation: self.batch}

    @property
    def quarantine_dropped_up_to(self) -> int:
        """The last batch whose messages in quarantine and late table are dropped; 0 for none."""
        return 0 if self.quarantine_retention is None else self.quarantine_retention.batch

    @property
    def quarantine_unknown_up_to(self) -> int:
        """The last batch that no fold can repeat, because its messages in quarantine are dropped; 0 for none."""
        return 0 if self.quarantine_retention is None else self.quarantine_retention.unknown_up_to

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The evidence of the halt of the stream, and of those of its topics."""
        findings = list(self.findings)
        for topic in self.halted_topics:
            findings += topic.findings
        return tuple(findings)

    @property
    def kept_versions(self) -> dict[int, int]:
        """The versions that stay loadable besides those from the rewind floor on, by batch: of rewinds, savepoints."""
        versions = {rewind.batch: rewind.version for rewind in self.rewinds}
        for savepoint in self.savepoints:
            if savepoint.version != NO_VERSION:
                versions[savepoint.batch] = savepoint.version
        return versions

    @property
    def is_rewound(self) -> bool:
        """Whether the last batch is a rewind."""
        return bool(self.rewinds) and self.rewinds[-1].batch == self.batch

    @property
    def taken_over(self) -> Origin | Imported | None:
        """The origin in another table of the first batch's state: a shadow's origin, or an imported savepoint."""
        return self.origin or self.imported

    @property
    def inherited_up_to(self) -> int:
        """Last batch that another fold wrote or another table contains: a proof starts with the state after it."""
        if self.promotion is not None:
            return self.promotion.first
        return FIRST_BATCH if self.taken_over is not None else 0

    @property
    def batch_before(self) -> int:
        """The newest batch of the side tables before the last batch is added to them."""
        if self.promotion is not None and self.promotion.batch == self.batch:
            return self.promotion.first - 1  # its batches became those of the table in one commit
        return self.batch - 1

    def may_rewind_to(self, batch: int) -> bool:
        """Whether everything that a rewind to a batch needs is kept."""
        return self.rewind_floor <= batch <= self.batch or any(each.batch == batch for each in self.savepoints)

    @property
    def may_start_over(self) -> bool:
        """Whether a rewind may go back to before the first batch: no file is needed, and nothing was inherited.

        The messages of an erased session would be read again.
        """
        return self.erasure is None and self.taken_over is None

    @property
    def files_version(self) -> int | None:
        """Version of the table with the files of the last batch; None if no version has them, and there are none."""
        return None if self.batch_version == NO_VERSION else self.batch_version

    def encode(self) -> str:
        """JSON for the metadata of a commit, with the features that the table needs."""
        return msgspec.json.encode(msgspec.structs.replace(self, features=self._find_features())).decode()

    def _find_features(self) -> dict[str, int]:
        used = dict[str, int]()
        for feature in list_installed():
            if any(getattr(self, field) for field in feature.head_fields):
                used[feature.name] = feature.version
        return used

    @staticmethod
    def decode(text: str) -> Head:
        """Decode the metadata of a commit.

        A head of version 1 is `running` for any kind of run. It is read as `bounded`, so that no supervisor
        starts a stream unasked; the next never-ending run makes it `running`.

        Raises:
            TableError: A newer release wrote fields that this release would silently drop, or the table needs a feature
                that is not installed.
        """
        try:
            head = decode_json(text, Head)
        except msgspec.ValidationError as error:
            raise TableError(
                f"this release of lockstep cannot read the table's head: {error}",
                next_step="run the release that wrote it, or a newer release",
            ) from error
        _check_features(head)
        # `encode` finds them again, from the fields that are set.
        head = msgspec.structs.replace(head, features={})
        if head.version >= HEAD_VERSION:
            return head
        # Version 1 recorded `running` for any run: no supervisor may start such a stream unasked.
        desired = Desired.BOUNDED if head.desired is Desired.RUNNING else head.desired
        return msgspec.structs.replace(head, desired=desired, version=HEAD_VERSION)


def _check_features(head: Head) -> None:
    """Refuse a table whose rows, files or batches an absent feature explains. Raises TableError."""
    installed = {feature.name: feature.version for feature in list_installed()}
    for name, version in head.features.items():
        if installed.get(name, 0) < version:
            problem = "does not have it"
            if name in installed:
                problem = f"has version {installed[name]} of it"
            raise TableError(
                f"the table of {head.stream} needs version {version} of feature {name!r}; this installation {problem}",
                next_step=f"install a release of lockstep with {name}, version {version} or newer",
            )
