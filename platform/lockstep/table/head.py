"""The head: all that a start needs to know, repeated by every commit of lockstep."""

from __future__ import annotations

from enum import Enum

import msgspec

from lockstep.errors import TableError
from lockstep.integrity.finding import Finding

FIRST_GENERATION = 1


HEAD_VERSION = 2
"""Version 1 said `running` after a run of any kind; see `Head.decode`."""


class Desired(Enum):
    """The desired state of a stream. Who may set which: docs/decisions/0010.

    | state   | a never-ending run                        | a bounded run                         |
    |---------|-------------------------------------------|---------------------------------------|
    | running | writes at all times: the supervisor's job | allowed while no never-ending one is  |
    | bounded | nobody starts one but a person            | the topics sensor asks for new topics |
    | stopped | nobody starts one but a person            | nobody starts one but a person        |
    | held    | refused until `lockstep start` or `stop`  | refused                               |
    | halted  | refused until `lockstep resume`           | refused                               |
    """

    RUNNING = "running"
    BOUNDED = "bounded"
    STOPPED = "stopped"
    HELD = "held"
    HALTED = "halted"


class SideFile(msgspec.Struct, frozen=True):
    """A file of a side table, named by the output commit and committed to its own table after.

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
    """The newest addition to a side table that not every batch adds to.

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
        at: When, in seconds since 1970 (UTC).
        cause: Why and by whom.
    """

    batch: int
    at: float
    cause: str


class Lineage(msgspec.Struct, frozen=True):
    """A generation that ended: its batches are valid up to `last_batch`."""

    generation: int
    last_batch: int


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """State of a stream as of one commit.

    Attributes:
        stream: Name of the stream that owns the table.
        cluster_id: Id of the Kafka cluster it reads.
        table_id: Delta's id of the output table; empty until the first claim.
        generation: The lineage of batches now going on.
        lineage: Generations that ended.
        epoch: Epoch of the writer that may commit.
        batch: Number of the last batch.
        batch_version: Version of the output table at which that batch was committed.
        hour: Commit hour of the last batch, "YYYY-MM-DDTHH" UTC.
        closed_hour: Newest hour into which nothing can be committed any more.
        desired: The desired state.
        reason: Why it was set, and by whom, in a few words.
        wished_version: Version of the output table at which somebody last said what is wanted; 0 where nobody has.
        resumes_as: While halted: the desired state after the resumption.
        findings: The evidence, while halted.
        ledger: The ledger file of the last batch.
        quarantine: The newest addition to the quarantine.
        late: The newest addition to the late table.
        full_ledger_batch: Newest batch whose ledger file holds the positions of all partitions.
        full_ledger_at: When that was, in seconds since 1970 (UTC).
        accepts_burst: An operator accepted a burst of quarantine that is not over yet.
        rewind_floor: Oldest batch that a rewind may go back to.
        last_resumption: The newest resumption; None while there was none.
        version: Of this layout.
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
    last_resumption: Resumption | None = None
    version: int = 1

    def encode(self) -> str:
        """As JSON, for the commit's metadata."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> Head:
        """From a commit's metadata.

        A head of version 1 says `running` whatever kind of run wrote it. It is read as `bounded`, so that no supervisor
        starts what nobody asked for; the next never-ending run makes it `running`.

        Raises:
            TableError: A newer release wrote fields that this one would silently drop.
        """
        try:
            head = msgspec.json.decode(text, type=Head)
        except msgspec.ValidationError as error:
            raise TableError(
                f"this release of lockstep cannot read the table's head: {error}",
                next_step="run the release that wrote it, or a newer one",
            ) from error
        if head.version >= HEAD_VERSION:
            return head
        desired = Desired.BOUNDED if head.desired is Desired.RUNNING else head.desired
        return msgspec.structs.replace(head, desired=desired, version=HEAD_VERSION)
