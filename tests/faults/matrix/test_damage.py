"""Table files that are missing, changed, or reset by others: refused by name, or without effect on the rows."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import uuid
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from lockstep import AvailableNow, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.run import run_stream
from lockstep.engine.executor.lookup_table import LookupUnusable
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.localdev.broker import Broker
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.repair import repair_stream
from lockstep.state.changelog import StateDamaged
from lockstep.table import delta_log, ledger
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OutputLog
from lockstep.table.foreign_commits import ForeignCommit
from tests.support.adding_stream import adding
from tests.support.feed import Feed, folded, session, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import heads, named_files, named_ledger_files
from tests.support.protocol_run import ProtocolRun, folders_in, stored_offsets
from tests.support.weighing_stream import weighed, weighing, write_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

MESSAGES = [*session(5), update(7, a=1), update(8, b=1)]


class Made(msgspec.Struct, frozen=True):
    """A stopped stream that has read eight messages in eight batches; a ninth message waits."""

    runs: LocalRuns
    topic: str

    @property
    def log(self) -> Path:
        """The log of the output table."""
        return self.runs.folders.table / "_delta_log"

    def assert_goes_on(self) -> None:
        """A run reads the ninth message, and all rows are those of the fold."""
        assert self.runs.run() is RunOutcome.ENDED
        values = [*MESSAGES, update(9, a=1)]
        assert folded([(at, "s", value) for at, value in enumerate(values)]) == self.runs.rows(self.topic)

    def assert_refuses(self, kind: type[Exception], match: str) -> None:
        """No run starts or changes anything until the damage is repaired."""
        before = sorted((path, path.read_bytes()) for path in self.log.iterdir())
        for _ in range(2):
            with pytest.raises(kind, match=match):
                self.runs.run()
        assert before == sorted((path, path.read_bytes()) for path in self.log.iterdir())


@pytest.fixture(scope="module")
def original(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Made once; no test changes it."""
    feed = Feed(broker.bootstrap_servers, f"damaged_{uuid.uuid4().hex[:8]}")
    runs = LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path_factory.mktemp("original"))
    topic = feed.create("values")
    feed.send(topic, MESSAGES)
    runs.with_limits(Limits(batch_messages=1)).run()
    feed.send(topic, [update(9, a=1)])
    return Made(runs, topic)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """A copy to harm, on a machine without hot state."""
    shutil.copytree(original.runs.root / "tables", tmp_path / "tables")
    return Made(dataclasses.replace(original.runs, root=tmp_path), original.topic)


def newest_state(made: Made) -> Path:
    (row,) = ledger.read_positions(made.runs.folders, OutputLog(made.runs.folders.table).base().head).values()
    assert row.state_file is not None
    return made.runs.folders.state / row.state_file


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARM: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "one bit": one_bit,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
}


@pytest.mark.fault("F17")
@pytest.mark.parametrize("harm", HARM)
def test_state_that_is_damaged_is_named_and_nothing_is_committed_without(made: Made, harm: str) -> None:
    path = newest_state(made)
    kept = path.read_bytes()
    HARM[harm](path)
    versions = len(heads(made.runs.folders.table))
    with pytest.raises(StateDamaged, match=path.name) as damaged:
        made.runs.run()
    assert "put the file back" in damaged.value.next_step
    assert [head["batch"] for head in heads(made.runs.folders.table)[versions:]] == [8]  # its claim
    path.write_bytes(kept)
    made.assert_goes_on()


@pytest.mark.fault("F17")
def test_state_that_is_damaged_ends_a_run_on_spark_at_once_and_no_message_is_suspected(
    made: Made, shared_spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """A task's error reaches the driver as the original error, not as the text of a Spark error."""
    path = newest_state(made)
    runs = made.runs
    one_bit(path)
    context = shared_spark.sparkContext
    stop = threading.Event()
    with pytest.raises(StateDamaged, match=path.name) as damaged:
        run_stream(runs.stream, runs.settings, spark=lambda: context, stop=stop, trigger=AvailableNow())
    assert "put the file back" in damaged.value.next_step
    assert "planning again" not in caplog.text


@pytest.mark.fault("F17")
def test_a_file_of_another_state_in_its_place_is_found(made: Made) -> None:
    path = newest_state(made)
    kept = path.read_bytes()
    other = next(each for each in made.runs.folders.state.iterdir() if each != path)
    path.write_bytes(other.read_bytes())
    with pytest.raises(StateDamaged, match=path.name):
        made.runs.run()
    path.write_bytes(kept)
    made.assert_goes_on()


@pytest.mark.fault("F18")
@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_ledger_file_that_is_damaged_is_refused(made: Made, harm: str) -> None:
    path = made.runs.folders.ledger / named_ledger_files(made.runs.folders.table)[-1]
    kept = path.read_bytes()
    HARM[harm](path)
    with pytest.raises(TableError, match=path.name) as refused:
        made.runs.run()
    assert "lockstep repair adding" in refused.value.next_step
    path.write_bytes(kept)
    made.assert_goes_on()


@pytest.mark.fault("F18")
def test_a_flipped_byte_of_the_ledger_is_refused_wherever_it_is(made: Made) -> None:
    """A start reads its positions from this file; Parquet itself reads some flipped bytes as other values."""
    folders = made.runs.folders
    path = folders.ledger / named_ledger_files(folders.table)[-1]
    content = path.read_bytes()
    for at in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :])
        with pytest.raises(TableError, match=rf"{path.name} is not as it was written"):
            ledger.read_ledger(folders.ledger, first_batch=8)
    path.write_bytes(content)
    made.assert_goes_on()


def restore(made: Made, version: int) -> None:
    """Restore a version, as an operator of another tool does."""
    DeltaTable(made.runs.folders.table).restore(version)


@pytest.mark.fault("F21")
def test_a_restore_by_somebody_else_stops_the_stream_with_its_version_and_author(made: Made) -> None:
    version = len(heads(made.runs.folders.table))
    restore(made, 4)
    made.assert_refuses(TableError, rf"version {version} is RESTORE by delta-rs:\S+, not a commit of lockstep")
    assert len(named_files(made.runs.folders.table)) < 7


@pytest.mark.fault("F60")
def test_a_restore_is_not_hidden_by_a_compaction_of_our_own_after_it(made: Made) -> None:
    folders = made.runs.folders
    head = heads(folders.table)[-1]
    close_hour(folders, head["hour"])
    version = len(heads(folders.table))
    restore(made, 5)
    with pytest.raises(TableError, match=f"version {version} is RESTORE"):
        compact_stream(folders)
    made.assert_refuses(TableError, f"version {version} is RESTORE")


POINTERS = {
    "empty": b"",
    "garbage": b"\x00\xff{{{",
    "to what is not there": b'{"version":7,"size":3}',
}


@pytest.mark.fault("F23")
@pytest.mark.parametrize("pointer", POINTERS)
def test_a_corrupt_pointer_to_the_last_checkpoint_changes_nothing(made: Made, pointer: str) -> None:
    write_checkpoint(made.runs.folders.table)
    (made.log / "_last_checkpoint").write_bytes(POINTERS[pointer])
    made.assert_goes_on()


@pytest.mark.fault("F23")
def test_a_log_version_that_is_missing_is_loud(made: Made) -> None:
    delta_log.make_entry_path(made.runs.folders.table, 4).unlink()
    made.assert_refuses(DeltaError, "found gap")  # of version 4, as the command line explains it


@pytest.mark.fault("F42")
def test_a_stream_that_is_pointed_at_the_table_of_another_is_refused_by_name(made: Made) -> None:
    root = made.runs.folders.root
    (root / "adding").rename(root / "other")
    other = made.runs.of(dataclasses.replace(made.runs.stream, name="other"))
    with pytest.raises(TableError, match="belongs to stream 'adding', not 'other'") as refused:
        other.run()
    assert "table_root" in refused.value.next_step


AHEAD = r"group \S+ in Kafka is ahead of this table by (\d+) offsets in 1 partitions"


@pytest.mark.fault("F75")
def test_a_root_that_was_restored_from_an_older_copy_is_read_up_again_from_kafka_and_says_so(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = made.runs.folders.root
    ConsumerGroup(made.runs.settings.kafka, "adding").forget()  # earlier tests have published offsets of their copies
    shutil.copytree(tables, tmp_path / "yesterday")
    made.assert_goes_on()
    assert re.search(AHEAD, caplog.text) is None
    shutil.rmtree(tables)
    shutil.copytree(tmp_path / "yesterday", tables)
    made.assert_goes_on()
    assert re.search(AHEAD, caplog.text)


@pytest.mark.fault("F75")
def test_a_root_that_is_moved_while_the_stream_is_stopped_goes_on_where_it_is(made: Made, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    made.runs.folders.root.rename(tmp_path / "elsewhere" / "tables")
    Made(dataclasses.replace(made.runs, root=tmp_path / "elsewhere"), made.topic).assert_goes_on()


TORN = [
    ("table/_delta_log", "older", "ledger holds batch 9, the output table batch 8"),
    ("table/_delta_log", "newer", r"ledger-\S+-b9-9-\S+ is missing"),
    ("ledger/_delta_log", "older", "goes on"),
    ("ledger/_delta_log", "newer", "ledger holds batch 9, the output table batch 8"),
    ("ledger", "older", r"ledger-\S+-b9-9-\S+ is missing"),
    ("table/commit_hour=*", "older", "names 1 files that are missing or of another size"),
    ("state", "newer", "goes on"),
]
"""A part of a copy that is a claim and a batch older or newer than the rest, and the outcome of a start."""


@pytest.mark.fault("F75")
@pytest.mark.parametrize(("part", "which", "outcome"), TORN)
def test_a_copy_of_a_root_that_was_written_meanwhile_goes_on_whole_or_is_refused_by_name(
    made: Made, tmp_path: Path, part: str, which: str, outcome: str
) -> None:
    copies = {"older": made.runs.folders.root / "adding", "newer": tmp_path / "newer"}
    shutil.copytree(made.runs.folders.root, tmp_path / "all" / "tables")
    copied = Made(dataclasses.replace(made.runs, root=tmp_path / "all"), made.topic)
    copied.assert_goes_on()
    shutil.copytree(copied.runs.folders.root / "adding", copies["newer"])
    rest = copies["older" if which == "newer" else "newer"]
    torn = Made(dataclasses.replace(made.runs, root=tmp_path / "torn"), made.topic)
    root = torn.runs.folders.root / "adding"
    shutil.copytree(rest, root)
    (place,) = (path.relative_to(rest) for path in rest.glob(part))
    shutil.rmtree(root / place)
    shutil.copytree(copies[which] / place, root / place)
    if outcome == "goes on":
        torn.assert_goes_on()
    else:
        with pytest.raises(TableError, match=outcome):
            torn.runs.run()


@pytest.mark.fault("F76")
def test_two_roots_of_one_stream_each_hold_all_rows_and_the_one_behind_says_that_there_is_another(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ConsumerGroup(made.runs.settings.kafka, "adding").forget()
    shutil.copytree(made.runs.folders.root, tmp_path / "second" / "tables")
    second = Made(dataclasses.replace(made.runs, root=tmp_path / "second"), made.topic)
    made.assert_goes_on()
    second.assert_goes_on()
    assert re.search(AHEAD, caplog.text)
    assert made.runs.rows(made.topic) == second.runs.rows(made.topic)


@pytest.mark.slow
@pytest.mark.fault("F42")
def test_a_table_of_another_kafka_is_refused_by_its_id(made: Made, tmp_path: Path) -> None:
    """Topics with the same names in another cluster are different topics."""
    with Broker.start(tmp_path / "kafka") as elsewhere:
        moved = dataclasses.replace(made.runs, bootstrap_servers=elsewhere.bootstrap_servers)
        with pytest.raises(TableError, match="belongs to Kafka cluster"):
            moved.run()


SPARK = {
    "OPTIMIZE": "OPTIMIZE delta.`{table}`",
    "SET TBLPROPERTIES": "ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "ADD COLUMNS": "ALTER TABLE delta.`{table}` ADD COLUMNS (extra INT)",
    "WRITE": "INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}`",
}


@pytest.mark.slow
@pytest.mark.fault("F21")
@pytest.mark.parametrize("table", ["table", "ledger"])
@pytest.mark.parametrize("operation", SPARK)
def test_what_spark_commits_stops_the_stream_by_name_and_one_command_sets_it_aside(
    tmp_path: Path, shared_spark: SparkSession, operation: str, table: str
) -> None:
    run = ProtocolRun(folders_in(tmp_path))
    folders = folders_in(tmp_path)
    run.claim()
    for _ in range(3):
        run.batch()
    harmed = {"table": folders.table, "ledger": folders.ledger}[table]
    version = DeltaTable(harmed).version() + 1
    prepared = run.prepared()
    shared_spark.sql(SPARK[operation].format(table=harmed))
    with pytest.raises(ForeignCommit, match=f"version {version} is {operation} by Apache-Spark/"):
        run.forward(run.commit(prepared).head)
    assert repair_stream(folders, apply=True).whole
    after = ProtocolRun(folders)
    after.claim()
    after.batch()
    batches = after.head.batch
    assert stored_offsets(folders) == list(range(2 * batches))
    assert sorted(row.batch for row in ledger.read_ledger(folders.ledger)) == list(range(1, batches + 1))


def test_a_lookup_table_that_is_not_as_declared_ends_a_run_on_spark_and_a_mended_one_is_read(
    feed: Feed, runs: LocalRuns, shared_spark: SparkSession
) -> None:
    """Workers get the versions with the tasks, and a worker's error reaches the driver as the original error."""
    runs = runs.of(weighing(feed.pattern))
    topic = feed.create("values")
    context = shared_spark.sparkContext
    weights = runs.folders.root / "weights"

    def run() -> None:
        run_stream(runs.stream, runs.settings, spark=lambda: context, stop=threading.Event(), trigger=AvailableNow())

    write_weights(weights, {"a": 1})
    feed.send(topic, session(2))
    run()
    doubled = pa.table({"name": ["a", "a"], "factor": [1, 2], "note": ["", ""]})
    write_deltalake(weights, doubled, mode="overwrite")
    feed.send(topic, [update(4, a=3)])
    with pytest.raises(LookupUnusable, match="such as name = 'a'") as unusable:
        run()
    assert (unusable.value.lookup, unusable.value.version) == ("weights", 1)
    write_weights(weights, {"a": 10})
    run()
    sent = [*((value, {"a": 1}) for value in session(2)), (update(4, a=3), {"a": 10})]
    assert weighed(sent) == runs.rows(topic)
