"""Derived tables of real streams on a real broker: their rows, causes of a rebuild, and refusals."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, TableSchema, materialize
from deltalake import DeltaTable

from lockstep import Ordered, Suspend
from lockstep.derived import Derived, OutputMode
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.derived import derive as operation
from lockstep.features.derived.asset import make_derived_asset
from lockstep.features.derived.derive import (
    BUILD_FOLDER,
    NOTE,
    CheckpointNote,
    DeriveFailed,
    DeriveInProgress,
    RebuildCause,
    plan_derived,
    run_derived,
)
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session, read_context
from lockstep.features.history.rewind import prepare_rewind, rewind_stream
from lockstep.features.retention.commit_kinds import RETENTION
from lockstep.model.commit_hour import compute_next_hour
from lockstep.operations.followers import DeclaredFollowers, FollowerStatus, list_effects, read_followers
from lockstep.operations.lifecycle import close_hour
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.storage import find_storage
from lockstep.table.commit import OutputLog, Proposal, raise_rewind_floor
from lockstep.table.delta_log import make_entry_path
from lockstep.table.follower_positions import FollowerName, read_position
from lockstep.table.head import Retention
from lockstep.table.layout import DerivedFolders, StreamFolders
from lockstep.table.live_files import LiveFiles, make_removal
from lockstep.verify.report import InvariantStatus
from tests.features.derived.killed_derive import IN_BATCH, MOMENTS
from tests.integration.cli.conftest import Platform
from tests.support.adding_stream import adding
from tests.support.derived_tables import (
    START,
    Timed,
    TimedWider,
    activity,
    count_values,
    expected_windows,
    fail_at_runs,
    give_rows,
    join_sessions,
    keep_none,
    keep_rows,
    send_each_second,
    stored_windows,
)
from tests.support.feed import Feed, session, update
from tests.support.follower_looks import (
    Killed,
    age_last_run,
    die,
    list_alarms,
    prove_follower,
    read_status_of,
    require_position,
)
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster import MetadataValue
    from pyspark.sql import SparkSession

    from lockstep.features.derived.derive import DerivedRun
    from lockstep.features.localdev.broker import Broker

Sent = list[tuple[str, bytes]]
ROOT = Path(__file__).parents[3]
SHARED: list[SparkSession] = []
JVM_SECONDS_MAX = 120
ACTIVITY = FollowerName("derived", "activity")


class LentSpark(SparkResource):
    """The shared Spark session of the tests, which is never stopped."""

    def session(self, name: str, import_roots: tuple[Path, ...] = ()) -> SparkSession:
        return SHARED[-1]


def interleaved(*names: str, updates: int) -> Sent:
    """Return the messages of several sessions in turns."""
    turns = zip(*([(name, value) for value in session(updates)] for name in names), strict=True)
    return [message for turn in turns for message in turn]


def updates(name: str, first: int, count: int) -> Sent:
    return [(name, update(first + n, a=1)) for n in range(count)]


@dataclass
class Site:
    """A stream and a table derived from it."""

    feed: Feed
    runs: LocalRuns
    spark: SparkSession
    sent: int = 0
    shown: list[Mapping[str, MetadataValue]] = field(default_factory=list)
    topic: str = ""

    def __post_init__(self) -> None:
        self.runs = self.runs.of(adding(self.feed.pattern, Ordered(on_violation=Suspend()), transform=Timed()))
        self.topic = self.feed.create("values")
        self.derived = activity(self.runs.stream)
        self.root = self.runs.settings.table_root
        self.table = DerivedFolders("activity", self.root).table

    def send(self, messages: Sent) -> None:
        """Send a batch and run the stream."""
        send_each_second(self.feed, self.topic, messages, self.sent)
        self.sent += len(messages)
        self.runs.run()

    def derive(self, derived: Derived | None = None) -> DerivedRun:
        return run_derived(derived or self.derived, self.root, lambda: self.spark)

    def materialize(self) -> Mapping[str, MetadataValue]:
        """Materialize the asset and return its metadata."""
        SHARED.append(self.spark)
        made = make_derived_asset(self.derived, self.runs.settings, owners=["team:tests"])
        resources = {"spark": LentSpark()}
        with DagsterInstance.ephemeral() as instance:
            assert materialize([made], instance=instance, resources=resources).success
            event = instance.get_latest_materialization_event(AssetKey(["activity", "table"]))
        assert event is not None
        assert event.asset_materialization is not None
        return event.asset_materialization.metadata

    def assert_equal(self) -> None:
        expected = expected_windows(self.runs.folders.table)
        assert expected
        assert stored_windows(self.table) == expected


@pytest.fixture
def site(feed: Feed, runs: LocalRuns, spark: SparkSession) -> Site:
    return Site(feed, runs, spark)


@pytest.fixture(scope="module")
def built(broker: Broker, spark_of_module: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A derived table after two runs with a compaction in between, and copies of all files around the second run."""
    feed = Feed(broker.bootstrap_servers, f"derived_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("derived"))
    made = Site(feed, runs, spark_of_module)
    made.send(interleaved("ann", "bob", updates=20))
    made.shown.append(made.materialize())
    shutil.copytree(made.root, made.root.parent / "older")
    made.send(updates("ann", 22, 20))
    close_hour(made.runs.folders)
    compact_stream(made.runs.folders)
    made.send(updates("bob", 22, 20))
    shutil.copytree(made.root, made.root.parent / "before")
    made.shown.append(made.materialize())
    shutil.copytree(made.root, made.root.parent / "after")
    return made


@pytest.fixture(scope="module")
def spark_of_module(shared_spark: SparkSession) -> SparkSession:
    session = shared_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session


@pytest.fixture
def copy(built: Site, tmp_path: Path) -> Path:
    """A copy of all files."""
    shutil.copytree(built.root.parent / "after", tmp_path / "tables")
    return tmp_path / "tables"


def test_windows_follow_batches_and_a_compaction(built: Site, copy: Path) -> None:
    first, second = built.shown
    assert (first["rebuilt_because"].value, second["rebuilt_because"].value) == ("it has no table yet", "not rebuilt")
    schema = second["dagster/column_schema"].value
    assert isinstance(schema, TableSchema)
    stored = DeltaTable(DerivedFolders("activity", copy).table).schema().fields
    assert [column.name for column in schema.columns] == [field.name for field in stored]
    added = first["rows_added"].value, second["rows_added"].value
    assert sum(map(int, map(str, added))) == int(str(second["dagster/row_count"].value))
    expected = expected_windows(StreamFolders("adding", copy).table)
    assert expected
    assert stored_windows(DerivedFolders("activity", copy).table) == expected


def test_rows_that_retention_has_dropped_stay_derived(site: Site) -> None:
    """Retention commits a data change, which would end a query without options."""
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    before = stored_windows(site.table)
    close_hour(site.runs.folders)
    head = OutputLog(site.runs.folders.table).base().head
    site.send(updates("ann", 22, 20))
    files = [file for file in LiveFiles(site.runs.folders.table).at(0) if file.commit_hour <= head.hour]
    drop = Retention(hour=compute_next_hour(head.hour), batch=head.batch, at=0.0, cause="a test")
    kept = Proposal(
        kind=RETENTION,
        next_head=lambda base: msgspec.structs.replace(base.head, retention=drop),
        removes=tuple(map(make_removal, files)),
    )
    OutputLog(site.runs.folders.table).commit(kept)
    done = site.derive()
    assert done.rebuilt == ()
    assert done.rows > len(before)
    assert [window for window in before if window not in stored_windows(site.table)] == []


def test_a_run_without_news_needs_no_spark(built: Site, copy: Path) -> None:
    done = run_derived(built.derived, copy, pytest.fail)
    assert (done.rebuilt, done.rows_before) == ((), done.rows)
    assert run_derived(activity(name="waiting", sources=(adding("x"),)), copy / "empty", pytest.fail).version is None


def test_after_a_rewind_and_an_erasure_the_rows_and_their_files_are_replaced(built: Site) -> None:
    (effect,) = prepare_rewind(built.runs.handle, "1").plan.followers
    assert (effect.name, effect.next_step) == ("activity", "lockstep derive activity")
    assert effect.effect == "its next run rebuilds it; until then it shows the previous rows"
    rewind_stream(built.runs.handle, "1", who="ann", why="a test")
    assert plan_derived(built.derived, built.root).rebuild is RebuildCause.REWOUND
    erased = EraseRequest(session="ann", drop_state=True)
    done = erase_session(built.runs.folders, erased, read_context(built.runs.handle), who="ann", why="a test")
    assert done.plan.followers == (effect,)
    assert plan_derived(built.derived, built.root).rebuild is RebuildCause.ERASED
    assert built.derive().rebuilt == (RebuildCause.ERASED,)
    built.assert_equal()
    kept = {path.name for path in built.table.glob("*.parquet")}
    assert kept == {path.rpartition("/")[2] for path in live_files(built.table)}, "files with erased rows are left"


@pytest.mark.slow
def test_a_rebuild_that_is_asked_for_deletes_the_files_with_erased_rows_too(built: Site, copy: Path) -> None:
    """A requested rebuild after an erasure is also a rebuild because of the erasure."""
    table = DerivedFolders("activity", copy).table
    assert "ann" in read_table(table)["_session"].to_pylist()
    erased = EraseRequest(session="ann", drop_state=True)
    erase_session(StreamFolders("adding", copy), erased, EraseContext(), who="ann", why="a test")
    done = run_derived(built.derived, copy, lambda: built.spark, rebuild=True)
    assert done.rebuilt == (RebuildCause.ASKED,)
    assert {path.name for path in table.glob("*.parquet")} == {Path(path).name for path in live_files(table)}


def live_files(table: Path) -> list[str]:
    return DeltaTable(table).file_uris()


def checkpoint_in(root: Path) -> Path:
    (only,) = (root / "activity" / "checkpoints").iterdir()
    return only


def newest(folder: Path) -> Path:
    return max((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def lose_all(root: Path) -> None:
    shutil.rmtree(root / "activity" / "checkpoints")


def lose_note(root: Path) -> None:
    (checkpoint_in(root) / NOTE).write_text("{")


def lose_query(root: Path) -> None:
    (checkpoint_in(root) / "spark" / "metadata").unlink()


def tear_offsets(root: Path) -> None:
    path = newest(checkpoint_in(root) / "spark" / "offsets")
    path.write_bytes(path.read_bytes()[:-20])


def damage_offsets(root: Path) -> None:
    path = newest(checkpoint_in(root) / "spark" / "offsets")
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"reservoirId":"', b'"reservoirId":"\xff'))
    assert path.read_bytes() != content


def tear_commit(root: Path) -> None:
    newest(checkpoint_in(root) / "spark" / "commits").write_bytes(b"")


def set_checkpoint_back(root: Path) -> None:
    for kind in ("offsets", "commits"):
        newest(checkpoint_in(root) / "spark" / kind).unlink()


def set_table_back(root: Path) -> None:
    shutil.rmtree(root / "activity" / "derived")
    shutil.copytree(root.parent / "before" / "activity" / "derived", root / "activity" / "derived")


def set_source_back(root: Path) -> None:
    """Replace the source by an older copy with as many versions from other commits."""
    (note,) = [msgspec.json.decode(p.read_bytes(), type=CheckpointNote) for p in root.rglob(NOTE)]
    shutil.rmtree(root / "adding")
    shutil.copytree(root.parent / "older" / "adding", root / "adding")
    output = OutputLog(root / "adding" / "table")
    while output.base().version < note.sources[0].version:
        output.commit(raise_rewind_floor(1, 0))


def shorten_log(root: Path) -> None:
    note = msgspec.json.decode((checkpoint_in(root) / NOTE).read_bytes(), type=CheckpointNote)
    offsets = newest(checkpoint_in(root) / "spark" / "offsets")
    at = f'"reservoirVersion":{note.sources[0].version + 1}'
    assert at in offsets.read_text()
    offsets.write_text(offsets.read_text().replace(at, '"reservoirVersion":1'))
    OutputLog(root / "adding" / "table").commit(raise_rewind_floor(1, 2))


HARMS: list[tuple[Callable[[Path], None], RebuildCause]] = [
    (lose_all, RebuildCause.LOST),
    (lose_note, RebuildCause.LOST),
    (lose_query, RebuildCause.DAMAGED),
    (tear_offsets, RebuildCause.DAMAGED),
    (damage_offsets, RebuildCause.DAMAGED),
    (tear_commit, RebuildCause.DAMAGED),
    (set_checkpoint_back, RebuildCause.DAMAGED),
    (set_table_back, RebuildCause.DAMAGED),
    (set_source_back, RebuildCause.REPLACED),
    (shorten_log, RebuildCause.EXPIRED),
]


@pytest.mark.parametrize(("harm", "cause"), HARMS, ids=lambda given: getattr(given, "__name__", ""))
def test_a_checkpoint_that_no_longer_fits_is_found_without_spark(
    built: Site, copy: Path, harm: Callable[[Path], None], cause: RebuildCause
) -> None:
    assert plan_derived(built.derived, copy).rebuild is None
    assert not plan_derived(built.derived, copy).is_due
    for name in ("older", "before"):
        shutil.copytree(built.root.parent / name, copy.parent / name)
    harm(copy)
    assert plan_derived(built.derived, copy).rebuild is cause


def test_a_source_from_before_what_was_read_is_another_one(built: Site, copy: Path) -> None:
    """The source was committed to while Spark started: the run read past the version of its plan."""
    output = OutputLog(copy / "adding" / "table")
    saved = copy.parent / "saved"
    output.commit(raise_rewind_floor(1, 0))
    shutil.copytree(copy / "adding", saved)

    def spark_after_a_commit() -> SparkSession:
        output.commit(raise_rewind_floor(1, 0))
        return built.spark

    run_derived(built.derived, copy, spark_after_a_commit)
    assert plan_derived(built.derived, copy).rebuild is None
    shutil.rmtree(copy / "adding")
    shutil.copytree(saved, copy / "adding")
    assert plan_derived(built.derived, copy).rebuild is RebuildCause.REPLACED
    for _ in range(2):
        OutputLog(copy / "adding" / "table").commit(raise_rewind_floor(1, 0))
    assert plan_derived(built.derived, copy).rebuild is RebuildCause.REPLACED


def add_newest_rows(table: Path, count: int) -> None:
    """Add files of one row each that is later than all other rows. A snapshot lists these files first."""
    file = min(Path(path) for path in live_files(table))
    row = pq.read_table(file, partitioning=None).slice(0, 1)
    made = file.with_name("newest.parquet")
    at = row.schema.get_field_index("_event_time")
    newest = pa.array([START + timedelta(hours=1)], row.schema.field(at).type)
    pq.write_table(row.set_column(at, row.schema.field(at), newest), made)
    hour = file.parent.name
    entry = make_entry_path(table, DeltaTable(table).version())
    values = dict([hour.split("=", 1)])
    added = list[bytes]()
    for number in range(count):
        (file.parent / f"newest_{number}.parquet").hardlink_to(made)
        add = {"path": f"{hour}/newest_{number}.parquet", "size": made.stat().st_size, "partitionValues": values}
        added.append(msgspec.json.encode({"add": add | {"modificationTime": 0, "dataChange": True}}))
    info, *others = entry.read_bytes().splitlines()
    entry.write_bytes(b"\n".join([info, *added, *others]))


@pytest.mark.slow
def test_a_source_of_many_files_is_read_by_one_batch(built: Site, copy: Path) -> None:
    """With several batches of 1,000 files, later rows would be late for the watermark of the first batch."""
    add_newest_rows(copy / "adding" / "table", 1000)
    none = activity(built.runs.stream, derive=keep_none)
    run_derived(none, copy, lambda: built.spark)
    assert newest(checkpoint_in(copy) / "spark" / "offsets").name == "0"


@pytest.mark.slow
def test_no_row_of_a_compacted_file_is_late_in_a_rebuild(built: Site, copy: Path) -> None:
    """A snapshot lists it after older files whose rows are newer."""
    add_newest_rows(copy / "adding" / "table", 2000)
    expected = expected_windows(copy / "adding" / "table")
    run_derived(built.derived, copy, lambda: built.spark, rebuild=True)
    assert stored_windows(DerivedFolders("activity", copy).table) == expected


def test_another_function_rebuilds_and_another_description_does_not(built: Site, copy: Path) -> None:
    said = activity(built.runs.stream, description="other words", schedule="0 * * * *")
    assert plan_derived(said, copy).rebuild is None
    other = activity(built.runs.stream, derive=count_values, output_mode=OutputMode.COMPLETE)
    assert plan_derived(other, copy).rebuild is RebuildCause.CODE


def test_a_damaged_log_names_the_remedy(built: Site, copy: Path) -> None:
    table = DerivedFolders("activity", copy).table
    min((table / "_delta_log").glob("*1.json")).unlink()
    with pytest.raises(TableError, match=r"the log of .*derived cannot be read: .*found gap") as refused:
        run_derived(built.derived, copy, pytest.fail)
    assert "computes the rows that the sources still have" in refused.value.next_step  # retention may have dropped some
    shutil.rmtree(table)
    assert plan_derived(built.derived, copy).rebuild is RebuildCause.NEW


def test_a_second_run_is_refused_while_one_writes(built: Site, copy: Path) -> None:
    with find_storage(copy).lock(DerivedFolders("activity", copy).lock), pytest.raises(DeriveInProgress):
        run_derived(built.derived, copy, lambda: built.spark)


def test_the_derived_tables_of_a_stream_are_found_by_their_positions(copy: Path) -> None:
    (effect,) = list_effects("adding", copy, undone_after=1)
    assert (effect.kind, effect.name, effect.next_step) == ("derived", "activity", "lockstep derive activity")
    assert list_effects("other", copy) == ()


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (give_rows, "did not return a streaming DataFrame"),
        (fail_at_runs, "by zero"),
        (count_values, "Invalid streaming output mode: append"),
    ],
)
def test_a_function_that_fails_leaves_the_table_as_it_is(
    built: Site, copy: Path, function: Callable[..., object], problem: str
) -> None:
    before = stored_windows(copy / "activity" / "derived")
    with pytest.raises(DeriveFailed, match=problem):
        run_derived(activity(built.runs.stream, derive=function), copy, lambda: built.spark)
    assert stored_windows(copy / "activity" / "derived") == before


def lose_state(root: Path) -> None:
    for path in (checkpoint_in(root) / "spark" / "state").glob("*/*/*.delta"):
        path.unlink()


@pytest.mark.slow
def test_lost_state_is_rebuilt_in_the_same_run(site: Site) -> None:
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    site.send(updates("ann", 22, 20))
    lose_state(site.root)
    assert plan_derived(site.derived, site.root).rebuild is None
    assert site.derive().rebuilt == (RebuildCause.DAMAGED,)
    site.assert_equal()


@pytest.mark.slow
def test_a_rewind_under_a_query_makes_it_a_rebuild(site: Site) -> None:
    """The rewind happens after the check of the sources and before Spark reads them."""
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    site.send(updates("ann", 22, 20))
    left = ["1"]

    def spark_after_a_rewind() -> SparkSession:
        if left:
            rewind_stream(site.runs.handle, left.pop(), who="ann", why="a test")
        return site.spark

    done = run_derived(site.derived, site.root, spark_after_a_rewind)
    assert done.rebuilt == (RebuildCause.REWOUND,)
    site.assert_equal()


@pytest.mark.slow
def test_totals_are_replaced_by_each_run(site: Site) -> None:
    site.send(interleaved("ann", "bob", updates=5))
    totals = activity(site.runs.stream, "totals", derive=count_values, output_mode=OutputMode.COMPLETE)
    for sent in (updates("ann", 7, 3), updates("bob", 7, 4)):
        site.derive(totals)
        site.send(sent)
    site.derive(totals)
    names = read_table(site.runs.folders.table)["name"].to_pylist()
    held = {row["name"]: row["count"] for row in read_table(site.root / "totals" / "derived").to_pylist()}
    assert held == {name: names.count(name) for name in names}


@pytest.mark.slow
def test_two_streams_are_joined(site: Site) -> None:
    other = site.runs.of(dataclasses.replace(site.runs.stream, name="other"))
    joined = activity(name="joined", sources=(site.runs.stream, other.stream), derive=join_sessions)
    for sent in (interleaved("ann", "bob", updates=5), updates("ann", 7, 3)):
        site.send(sent)
        other.run()
        site.derive(joined)
    places = [(row["_session"], row["_offset"]) for row in read_table(site.runs.folders.table).to_pylist()]
    assert read_table(site.root / "joined" / "derived").num_rows == sum(places.count(place) for place in places)
    assert [each.name for each in list_effects("other", site.root)] == ["joined"]


def forget_commit(root: Path) -> None:
    """Delete Spark's note of the last batch, as a kill does between the commit to the table and the note."""
    path = newest(checkpoint_in(root) / "spark" / "commits")
    path.with_name(f".{path.name}.crc").unlink()
    path.unlink()


@pytest.mark.slow
def test_a_batch_that_is_in_the_table_is_not_written_twice(site: Site) -> None:
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    site.send(updates("ann", 22, 20))
    site.derive()
    forget_commit(site.root)
    assert plan_derived(site.derived, site.root).is_due
    assert site.derive().rebuilt == ()
    site.assert_equal()
    site.send(updates("ann", 42, 20))
    assert site.derive().rebuilt == ()
    site.assert_equal()


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "is_replaced"), [("_replace_rows", False), ("_finish", True)])
def test_a_rebuild_that_is_killed_has_replaced_all_rows_or_none(site: Site, moment: str, *, is_replaced: bool) -> None:
    assert moment in MOMENTS
    site.send(interleaved("ann", "bob", updates=20))
    site.send(updates("ann", 22, 20))
    site.derive()
    before = stored_windows(site.table)
    position = read_position(site.root, ACTIVITY)
    rewind_stream(site.runs.handle, "1", who="ann", why="a test")
    assert expected_windows(site.runs.folders.table) != before
    command = [sys.executable, "-m", "tests.features.derived.killed_derive"]
    ended = subprocess.run(
        [*command, str(site.root), site.feed.pattern, moment], cwd=ROOT, check=False, capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert stored_windows(site.table) == (expected_windows(site.runs.folders.table) if is_replaced else before)
    assert read_position(site.root, ACTIVITY) == position
    assert (plan_derived(site.derived, site.root).rebuild is None) == is_replaced
    site.runs.run()
    site.derive()
    site.assert_equal()
    assert len(list((site.root / "activity" / "checkpoints").iterdir())) == 1
    assert not (checkpoint_in(site.root) / BUILD_FOLDER).exists()
    read = read_position(site.root, ACTIVITY)
    assert read is not None
    assert [source.batch for source in read.sources] == [site.runs.handle.require_head().batch]


@pytest.mark.slow
def test_the_jvm_of_a_run_that_was_killed_may_wake_up_after_the_next_run(site: Site, tmp_path: Path) -> None:
    """The JVM stops between the plan of a batch and its commit, with the checkpoint open."""
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    site.send(updates("ann", 22, 20))
    command = [sys.executable, "-m", "tests.features.derived.killed_derive"]
    said = tmp_path / "said"  # a pipe would end with the JVM
    with said.open("wb") as output:
        arguments = [*command, str(site.root), site.feed.pattern, IN_BATCH]
        ended = subprocess.run(arguments, cwd=ROOT, check=False, stdout=output, stderr=subprocess.DEVNULL)
    assert ended.returncode == -signal.SIGKILL
    jvm = psutil.Process(int(said.read_text()))
    try:
        assert jvm.status() == psutil.STATUS_STOPPED
        assert plan_derived(site.derived, site.root).is_due, "it was stopped before its batch was in the table"
        assert site.derive().rebuilt == ()
        site.assert_equal()
        jvm.resume()
        jvm.wait(JVM_SECONDS_MAX)
    finally:
        if jvm.is_running():
            jvm.kill()
    site.assert_equal()
    site.send(updates("bob", 22, 20))
    assert site.derive().rebuilt == ()
    site.assert_equal()


@pytest.fixture
def platform(built: Site, copy: Path, tmp_path: Path) -> Platform:
    """A platform folder that declares the derived table over a copy of its files."""
    family = f"derived_{uuid.uuid4().hex[:8]}"
    (tmp_path / "assets").mkdir()
    declared = f'stream = adding(r"{built.feed.pattern}", Ordered(on_violation=Suspend()), transform=Timed())'
    (tmp_path / "assets" / f"{family}.py").write_text(
        "from lockstep import Ordered, Suspend\n"
        "from tests.support.adding_stream import adding\n"
        "from tests.support.derived_tables import Timed, activity\n\n"
        f"{declared}\nderived = activity(stream)\n"
    )
    environment = {"LOCKSTEP_TABLE_ROOT": str(copy), "LOCKSTEP_SPARK__MASTER": "local[2,3]"}
    return Platform(tmp_path, built.feed, built.runs, environment)


def shown_in_status(platform: Platform) -> tuple[list[str], int | None, bool, str]:
    """Return the names of the derived tables in `lockstep status`, and the state of the last table."""
    (stream,) = msgspec.json.decode(platform.call("status", "--json").stdout)
    found = stream["followers"]
    return (
        [each["name"] for each in found],
        found[-1]["behind"],
        bool(found[-1]["last_run"]),
        found[-1]["next_run"],
    )


def test_the_command_line_shows_what_a_run_would_do(platform: Platform, copy: Path) -> None:
    (plan,) = msgspec.json.decode(platform.call("derive", "--plan", "--json").stdout)
    assert (plan["name"], plan["rebuild"], plan["is_due"]) == ("activity", None, False)
    (source,) = plan["sources"]
    assert (source["stream"], source["next_version"]) == ("adding", source["version"] + 1)
    assert "has nothing to do" in platform.call("derive", "activity", "--plan").stdout
    assert shown_in_status(platform) == (["activity"], 0, True, "has nothing to do")
    (done,) = msgspec.json.decode(platform.call("derive", "activity", "--json").stdout)
    assert (done["rebuilt"], done["rows"]) == ([], done["rows_before"])
    lose_all(copy)
    assert "rebuilds it: its checkpoint is lost" in platform.call("derive", "--plan").stdout
    assert shown_in_status(platform) == (["activity"], None, True, "rebuilds it: its checkpoint is lost")
    refused = platform.call("derive", "activty")
    assert refused.exit_code == 1
    assert "derived tables: activity" in refused.stderr


def test_a_table_that_fails_leaves_the_others_their_turn(platform: Platform, copy: Path) -> None:
    (platform.folder / "assets" / f"later_{uuid.uuid4().hex[:8]}.py").write_text(
        "from dataclasses import replace\n"
        "from tests.support.derived_tables import activity, adding\n\n"
        'stream = replace(adding("later.*"), name="later")\n'
        'derived = activity(stream, "later_activity")\n'
    )
    with find_storage(copy).lock(DerivedFolders("activity", copy).lock):
        both = platform.call("derive", "--json")
        planned = platform.call("derive", "--plan")
    assert (both.exit_code, planned.exit_code) == (1, 0)
    assert [done["name"] for done in msgspec.json.decode(both.stdout)] == ["later_activity"]
    assert both.stderr.startswith("error: another run writes derived table activity"), both.stderr


def status_in(root: Path, derived: Derived) -> FollowerStatus:
    (found,) = read_followers(DeclaredFollowers((), (derived,), root))
    return found


def test_the_status_says_how_far_a_derived_table_is_behind(built: Site, tmp_path: Path) -> None:
    """Before the second run two batches, a compaction and the commits around them are unread."""
    older, before, after = (status_in(built.root.parent / name, built.derived) for name in ("older", "before", "after"))
    first, newest = (
        plan_derived(built.derived, built.root.parent / name).sources[0].version or 0 for name in ("older", "before")
    )
    assert (older.next_run, older.behind) == ("has nothing to do", 0)
    assert (before.next_run, before.behind) == ("goes on", newest - first)
    assert (after.next_run, after.behind) == ("has nothing to do", 0)
    assert older.last_run == before.last_run
    assert before.last_run is not None
    assert after.last_run is not None
    assert before.last_run < after.last_run
    assert (before.freshness_seconds or 0) > (after.freshness_seconds or 0) > 0
    shutil.copytree(built.root / "adding", tmp_path / "tables" / "adding")
    new = status_in(tmp_path / "tables", activity(built.runs.stream, name="unborn"))
    assert (new.behind, new.last_run, new.next_run) == (None, None, "rebuilds it: it has no table yet")
    lost = status_in(built.root / "unmounted", built.derived)
    assert lost.problem == f"the table root {built.root / 'unmounted'} does not exist"
    (tmp_path / "empty").mkdir()
    waits = status_in(tmp_path / "empty", built.derived)
    assert (waits.behind, waits.next_run) == (None, "waits for a table")


def test_a_derived_table_has_lag_alarm_and_proof(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.send(interleaved("ann", "bob", updates=20))
    site.derive()
    assert list_alarms(site.runs) == []
    assert prove_follower(site.runs).status is InvariantStatus.PROVEN
    site.send(updates("ann", 22, 20))
    age_last_run(site.runs, ACTIVITY)
    (late,) = list_alarms(site.runs)
    assert "derived activity: 1 unread batch, and no run for 4.0 h; the objective is 3.0 h" in late
    assert "next: lockstep derive activity; if its declaration was removed: lockstep forget derived activity" in late
    assert prove_follower(site.runs).status is InvariantStatus.PROVEN

    before = require_position(site.runs, ACTIVITY)
    with monkeypatch.context() as killed:
        killed.setattr(operation, "write_position", die)
        with pytest.raises(Killed):
            site.derive()
    site.assert_equal()
    assert require_position(site.runs, ACTIVITY) == before
    assert read_status_of(site.runs, site.derived).behind == 0
    assert list_alarms(site.runs) == [late]
    run_derived(site.derived, site.root, pytest.fail)  # no news, so Spark is not started
    assert list_alarms(site.runs) == []

    rewind_stream(site.runs.handle, "1", who="ann", why="a test")
    undone = prove_follower(site.runs)
    assert undone.status is InvariantStatus.NOT_PROVEN
    assert undone.reason == "batch 2 of generation 1 was undone: it may hold rows that are gone"
    assert undone.next_step == "lockstep derive activity"
    site.derive()
    assert prove_follower(site.runs).status is InvariantStatus.PROVEN
    failing = activity(site.runs.stream, derive=fail_at_runs)
    with pytest.raises(DeriveFailed):
        site.derive(failing)
    (failed,) = list_alarms(site.runs)
    assert "failed with DeriveFailed" in failed
    assert prove_follower(site.runs).status is InvariantStatus.PROVEN


@pytest.mark.slow
def test_the_command_line_rebuilds_where_it_is_asked_to(platform: Platform, copy: Path) -> None:
    expected = stored_windows(DerivedFolders("activity", copy).table)
    done = platform.call("derive", "activity", "--rebuild")
    assert (done.exit_code, "it was asked for" in done.stdout) == (0, True), done.output
    assert stored_windows(DerivedFolders("activity", copy).table) == expected


@pytest.mark.slow
def test_a_column_that_a_source_gets_is_read_from_there_on(site: Site) -> None:
    copied = activity(site.runs.stream, "copied", derive=keep_rows, partition_by=("_session",))
    site.send(interleaved("ann", "bob", updates=20))
    for each in (site.derived, copied):
        site.derive(each)
    site.runs = site.runs.of(dataclasses.replace(site.runs.stream, transform=TimedWider()))
    site.send(updates("ann", 22, 20))
    assert (site.derive().rebuilt, site.derive(copied).rebuilt) == ((), ())
    site.assert_equal()
    held = DeltaTable(site.root / "copied" / "derived")
    assert held.metadata().partition_columns == ["_session"]
    weights = held.to_pyarrow_table().column("weight").to_pylist()
    assert (weights.count(7), weights.count(None)) == (20, 80)
