"""One error of every class, as it is raised; its text is compared with `golden/` exactly.

`pytest tests/unit/errors --write-golden` rewrites the texts: read the difference before committing it.
"""

from __future__ import annotations

from pathlib import Path

from lockstep import errors
from lockstep.declare.delivery_target import (
    DeliveryFenced,
    RowIdentity,
    RowUndeliverable,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.declare.discovery import ModuleBroken
from lockstep.declare.lookup import LookupNotBound
from lockstep.declare.rules import RuleViolated
from lockstep.engine.driver.executors import ExecutorsGone, JobCancelled, SparkStopped
from lockstep.engine.driver.halted_topics import TopicsHalted
from lockstep.engine.driver.resumption import PositionMismatch
from lockstep.engine.driver.spark_job import BatchTimeout
from lockstep.engine.executor.limits import EngineLimit, LimitKind
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.errors import LockstepError
from lockstep.feature import ExtensionBroken
from lockstep.features.compaction.plan import Bin
from lockstep.features.compaction.proof import ProofDiffers, RowProof
from lockstep.features.compaction.rewrite import BinRefused
from lockstep.features.compaction.run import CompactionRefused, CompactionResult, InputsGone
from lockstep.features.copies.backup import BackupOvertaken
from lockstep.features.copies.copied_files import CopyDamaged, CopyInProgress
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.deliver import UnknownDelivery
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.deploy.releases import ReleaseUnusable
from lockstep.features.derived.derive import DeriveFailed, DeriveInProgress, UnknownDerived
from lockstep.features.erase.commit import ErasureOvertaken
from lockstep.features.export.dataset import ExportMismatch
from lockstep.features.history.rewind import RewindReason
from lockstep.features.history.shadow import NotAShadow, ShadowCodeChanged
from lockstep.features.host.host import SparkGone
from lockstep.features.inference.sample import NothingToInfer
from lockstep.features.localdev.broker import PortTaken
from lockstep.features.localdev.recordings import RecordingError
from lockstep.features.retention.housekeeping import HousekeepingFailed, HousekeepingResult, StepResult
from lockstep.integrity.resume_options import AcceptLoss, IntegrityLost, StreamHalted
from lockstep.kafka.topic_identity import make_topics_without_ids
from lockstep.model.compatibility import Incompatibility
from lockstep.model.finding import Finding
from lockstep.model.position import Position, TopicIdPartition
from lockstep.operations.followers import UnknownFollower
from lockstep.operations.inspect.message import NoMessage
from lockstep.operations.inspect.state import NoSuchSession, NotRetained, StateFilter
from lockstep.operations.inspect.streams import UnknownStream
from lockstep.operations.inspect.trial import NothingToTry
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Obstacle, Refused
from lockstep.operations.project_streams import NewStreamRefused
from lockstep.operations.quarantine import ExportRefused, NotInQuarantine, Place
from lockstep.operations.query import WrongQuery
from lockstep.operations.resume import NotHalted, ResumptionUnanswered, UnansweredFindings
from lockstep.operations.stream_table import NoTable
from lockstep.orchestration.launch import StartFailed
from lockstep.state.changelog import StateDamaged, make_empty_state
from lockstep.state.codec import IntegrityClassChanged, MigrationFailed, StateNotOfItsType, StateTypeChanged
from lockstep.state.restore import LocalStateUnusable
from lockstep.state.translation import NotTranslatable
from lockstep.storage import NeedsFileSystem, PathRefused
from lockstep.table.archive import ArchiveLacks
from lockstep.table.commit import HourClosed, NoSuchLoss
from lockstep.table.follower_positions import FollowerName
from lockstep.table.foreign_commits import ForeignCommit, TableReplaced
from lockstep.table.head import Origin
from lockstep.table.layout import TableRootMissing
from lockstep.table.row_encoder import RowOrigin, RowRejected
from lockstep.table.row_order import OutOfOrder
from lockstep.user_code.copies import CopyChanged
from lockstep.user_code.files import CodeUnusable

ORIGIN = Origin(
    stream="books", table_id="id", batch=7, digest="", code="/checkouts/fix", code_digest="", at=0.0, cause="a fix"
)
GAP = Finding(
    cause="gap",
    topic="books.eth",
    topic_id="id",
    partition=0,
    offset=120,
    until=121,
    session="eth",
    expected="7",
    found="9, missing 7 to 8",
)
GARBAGE = Finding(
    "undecodable", "books.eth", "id", 3, 7, 8, expected="a message of the stream", found="Input data was truncated"
)
GREW = Finding("partitions grew", "books.btc", "id", 4, 0, 0, expected="4 partitions", found="5 partitions")
STEP = "start the stream again: it goes on from the ledger"

EVERY: tuple[LockstepError, ...] = (
    LockstepError("stream books has no batch yet, no hour is open", next_step="lockstep run books"),
    errors.CallError("Strict.evidence", "is missing", "for example Strict(evidence=Sequence())"),
    errors.DeclarationError("Every.seconds", 0.0, "is not above 0", "Every(seconds=5)"),
    errors.SettingsError("kafka.bootstrap_servers is missing", next_step="set it in lockstep.toml"),
    errors.EnvironmentProblem("no Java of 17 or 21 was found", next_step="install OpenJDK 17 or 21"),
    NeedsFileSystem(Path("s3:/data/lockstep/books"), "rename a folder at once"),
    LookupNotBound("instruments"),
    LookupUnusable("instruments", Path("/data/instruments"), 7, "column lot is string, wanted int64"),
    errors.RegistryUnreachable("the schema registry answers HTTP 503", next_step="look after the registry"),
    errors.KafkaError("Kafka did not answer about topics: timed out", next_step="lockstep doctor"),
    errors.KafkaUnreachable("Kafka did not answer about topics: timed out", next_step="lockstep doctor"),
    errors.TableError("version 7 was written by somebody else", next_step="end that writer, then restore version 6"),
    errors.CommitUnknown("nobody said whether version 7 landed", next_step=STEP),
    errors.NotCommitted(
        "tables/books/table: version 7 was not written: No space left on device",
        next_step="free space on the table root, then repeat the command",
    ),
    ArchiveLacks(Path("tables/books/archive"), "topic id q, partition 0", 4, 9),
    ForeignCommit(Path("tables/books/ledger"), 7, "OPTIMIZE", "delta-rs:py-1.6.6"),
    TableReplaced(Path("tables/books/table"), "there is no log"),
    errors.StateError("state of books.eth/0 cannot be used", next_step="lockstep repair books"),
    errors.Fenced(3, 4),
    errors.Overtaken("order_books", "rewind to batch 90", errors.Fenced(3, 4)),
    StartFailed("books", "4711", "run 4711 ended: FAILURE; Kafka did not answer within 60 s"),
    errors.StreamHeld("books", "a new disk (ann)"),
    StreamHalted("books", (GAP,)),
    IntegrityLost("books", (GAP, GARBAGE, GREW)),
    TopicsHalted("books", (GAP,)),
    errors.Violation(1, 2, "checksum of the book"),
    RuleViolated("price is at least 0", "price = -1", "price_in_range", halts=True),
    EngineLimit(LimitKind.MEMORY, "MemoryError: out of memory", alone="books.eth/0@120"),
    LocalStateUnusable(make_empty_state(1, "id", 0, 120), "No space left on device"),
    PortTaken("the broker ended with exit code 1", next_step="read broker.log"),
    HourClosed("hour 2026-01-31T09 is closed", next_step="nothing: the batch is planned again"),
    HousekeepingFailed(
        HousekeepingResult(
            stream="order_books",
            planned_only=False,
            rewind_floor=7,
            steps=(StepResult(step="log of table", files=3), StepResult(step="state", problem="a file is damaged")),
        )
    ),
    CompactionRefused([(Bin("2026-01-31T09", ()), BinRefused("a proof differs", "compact again"))], CompactionResult()),
    ExportMismatch(Path("/tables/books/export"), "codec is gzip, and its hours are written with zstd"),
    InputsGone("2026-01-31T09", "3 of its files are not live any more"),
    OutOfOrder(TopicIdPartition("id", 0), 120, "row 1 is after offset 121"),
    ProofDiffers(RowProof(rows=10), RowProof(rows=9), "10 rows became 9"),
    StateDamaged("state/5.state (bytes 0 to 90)", "checksum 1f", "checksum 2e"),
    StateTypeChanged("state/5.state (bytes 0 to 90)", (Incompatibility("rows{}.price", "float", "str"),)),
    IntegrityClassChanged("the state of books.eth/0 (batch 7)", "FuzzyWindow(reorder=True)"),
    StateNotOfItsType("eth", "can't serialize ints > 2**64 - 1", next_step="fix the fold"),
    MigrationFailed("eth", "KeyError: 'bids'", {"asks": {}}),
    BatchTimeout(300),
    ExecutorsGone("spark://master.example:7077"),
    JobCancelled("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group 9 SQLSTATE: XXKDA"),
    SparkStopped("spark://master.example:7077"),
    SparkGone("markets", "Cannot call methods on a stopped SparkContext"),
    RowRejected(RowOrigin("books.eth", 0, 120, 1, 5), "size", 2**64, "does not fit into int64"),
    RecordingError(Path("spot.jsonl"), 12, "not a recorded message"),
    NoTable("books", Path("tables")),
    TableRootMissing(Path("/data/tables")),
    make_topics_without_ids(["trades.eth", "trades.btc"], 9),
    ExtensionBroken("my_platform.costs", "NameError: name 'x' is not defined"),
    ReleaseUnusable("v1", "release v2 became current meanwhile, by ann", "see lockstep deploy --list"),
    CodeUnusable(Path("assets/pipe"), "is neither a file nor a folder", "copy the file into the project, or remove it"),
    CopyChanged(Path("code/copies/3f2a")),
    ModuleBroken("assets/books.py", "NameError: name 'x' is not defined (line 3)", next_step="correct assets/books.py"),
    UnknownStream("book", {}),
    NothingToTry("books", "topic books.eth"),
    NothingToInfer("books.eth", "none of its first 10 messages is JSON"),
    NewStreamRefused("books", "assets/books.py exists", "choose another name, or move the file away"),
    WrongQuery("SELECT x", "No field named x", {}),
    NoSuchSession("books", StateFilter("books.eth", 0, "eth"), "1 of 4"),
    NotRetained("books", 3, 7, 90),
    NotInQuarantine("books", Place("books.eth", 0, 120)),
    ExportRefused(Path("refused.jsonl"), "it is there already"),
    NoMessage("books", Place("books.eth", 0, 120)),
    NotHalted("books", "running"),
    DeliveryFenced("large_moves"),
    DeliveryHalted("large_moves", HaltReason.DROPPED, "those of batches 3 to 7", next_step="lockstep deliver --accept"),
    RowUndeliverable(RowIdentity("id", 0, 120, 1), "its message is too large", next_step="let Delivery.select cut it"),
    TargetInterrupted("large_moves", "the coordinator of transactions gave no producer id"),
    TargetRefused("large_moves", "topic moves does not exist", next_step="create it"),
    UnknownDelivery("large_move", ["large_moves"]),
    DeriveFailed("book_activity", "integer division or modulo by zero"),
    DeriveInProgress("book_activity"),
    UnknownDerived("book_activty", ["trades", "book_activity"]),
    UnknownFollower(FollowerName("derived", "book_activty"), [FollowerName("derived", "book_activity")]),
    ErasureOvertaken(
        "batch 7 or a savepoint was committed since the erasure was planned after batch 6",
        next_step="lockstep stop books; then erase again",
    ),
    NoSuchLoss("books", 12, 17),
    NotRewindable("books", 7, "the last batch is 6", next_step="lockstep history books lists the batches"),
    Refused(
        "books",
        "the rewind",
        (
            Obstacle(RewindReason.WRITER, "epoch 3 is writing", "lockstep stop books"),
            Obstacle(RewindReason.NO_CHANGE, "batch 7 is the last batch", "choose an earlier batch"),
        ),
    ),
    BackupOvertaken("books", "2 files are missing: a.parquet, b.state"),
    NotTranslatable(
        Position(topic="books.eth", topic_id="VWqMlHqoTK", partition=0, next_offset=120), "messages are buffered"
    ),
    CopyDamaged(Path("copies/books"), "there is no manifest.json: not a whole copy", "make it again"),
    CopyInProgress(Path("copies/books")),
    PathRefused(Path("copies/books"), "a/../../keys", "a part of it is empty, '.' or '..'"),
    ShadowCodeChanged("fix", ORIGIN),
    NotAShadow("books", "fix"),
    ResumptionUnanswered("books", ("books.eth",), "the run has ended"),
    UnansweredFindings("books", (GAP,), (), "the producer's disk"),
    PositionMismatch("books", AcceptLoss("books.eth", 0, 119, 121), "books.eth/0 is at offset 120"),
)
