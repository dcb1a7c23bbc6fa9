"""A stream whose tables are in an object store: broker, engine, every operation, proof, command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetCheckKey, AssetKey
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from lockstep import Every, Limits
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import TableError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.history.diff import compare_streams
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import rewind_stream
from lockstep.features.history.shadow import begin_shadow, drop_shadow
from lockstep.features.localdev.processes import find_free_ports
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.stream_table import try_read_head
from lockstep.storage import find_storage
from lockstep.storage.object_store import open_object_storage
from lockstep.table.delta_log import make_entry_path, open_delta_table
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions
from lockstep.verify.files import find_size, open_table
from tests.integration.object_store.conftest import assert_proven, rows
from tests.support.adding_stream import Mended, adding
from tests.support.feed import folded, session, update
from tests.support.installation import Installation, wait_until
from tests.support.local_runs import read_in_batches
from tests.support.plain_reader import named_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.features.localdev.broker import Broker
    from tests.integration.cli.conftest import Platform
    from tests.support.link import Link
    from tests.support.local_runs import LocalRuns
    from tests.support.object_store import ObjectStore


def test_a_stream_goes_on_from_its_state_after_a_crash_and_without_its_local_store(made: Platform) -> None:
    values = session(9)
    topic = made.feed.create("values")
    read_in_batches(made.feed, made.runs, topic, values[:4])
    made.feed.send(topic, values[4:6])

    class Killed(BaseException):
        """The process ends after its tasks have written."""

    def kill(runner: object) -> object:
        def run(plan: object) -> object:
            runner(plan)  # type: ignore[operator]  # a runner
            raise Killed

        return run

    with pytest.raises(Killed):
        made.runs.run(around=kill)  # type: ignore[arg-type]  # a runner
    shutil.rmtree(made.runs.settings.local_root)
    made.feed.send(topic, values[6:])
    made.runs.run()
    expected = sorted(folded([(offset, "s", value) for offset, value in enumerate(values)]), key=repr)
    assert rows(made.runs, topic) == expected
    assert_proven(made.runs)


def test_a_run_waits_for_a_store_that_is_away(made: Platform, object_store: ObjectStore) -> None:
    """The run waits at any read or write."""
    values = session(59)
    topic = made.feed.create("values")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(made.runs.run, trigger=Every(seconds=0.1), stop=stop)
        try:
            for until in range(15, len(values) + 1, 15):
                made.feed.send(topic, values[until - 15 : until])
                object_store.stop()
                time.sleep(3)
                object_store.resume()
                await_offset(made.runs, run, until)
        finally:
            stop.set()
        assert run.result() is RunOutcome.STOPPED
    expected = sorted(folded([(offset, "s", value) for offset, value in enumerate(values)]), key=repr)
    assert rows(made.runs, topic) == expected
    assert_proven(made.runs)


@pytest.mark.slow
def test_every_client_waits_for_a_store_that_is_away(made: Platform, object_store: ObjectStore) -> None:
    """Our client, delta-rs and the proof's clients; each alone fails after one or two seconds."""
    made.feed.send(made.feed.create("values"), session(5))
    made.runs.run()
    table = made.runs.folders.table
    entry = make_entry_path(table, 0)
    reads: tuple[Callable[[], object], ...] = (
        lambda: len(find_storage(entry).read(entry)),
        lambda: open_delta_table(table).version(),
        lambda: open_table(table).version(),
        lambda: find_size(entry),
    )
    expected = [read() for read in reads]
    object_store.stop()
    with ThreadPoolExecutor(len(reads)) as threads:
        found = [threads.submit(read) for read in reads]
        time.sleep(5)
        object_store.resume()
        assert [each.result() for each in found] == expected


def test_rows_are_there_once_where_answers_break_off(made: Platform, link: Link) -> None:
    """This includes the answer to a commit, which then exists without its writer's knowledge."""
    values = session(7)
    topic = made.feed.create("values")
    link.breaks_each = 7
    read_in_batches(made.feed, made.runs, topic, values)
    close_hour(made.runs.folders)
    compact_stream(made.runs.folders)
    expected = sorted(folded([(offset, "s", value) for offset, value in enumerate(values)]), key=repr)
    assert_proven(made.runs)
    link.breaks_each = 0
    assert rows(made.runs, topic) == expected


def await_offset(runs: LocalRuns, run: Future[RunOutcome], until: int) -> None:
    """Wait until a run has committed its messages up to an offset, or has ended."""

    def is_there() -> bool:
        head = try_read_head(runs.folders)
        rows = {} if head is None else read_positions(runs.folders, head)
        return run.done() or any(row.until >= until for row in rows.values())

    wait_until(is_there, f"messages up to {until} are read")


def test_of_two_writers_one_is_fenced_and_every_row_is_there_once(made: Platform) -> None:
    values = session(5)
    topic = made.feed.create("values")
    made.feed.send(topic, values)
    outcomes = list[RunOutcome]()

    def interrupted(runner: object) -> object:
        def run(plan: object) -> object:
            results = runner(plan)  # type: ignore[operator]  # a runner
            if not outcomes:
                outcomes.append(quick.run())
            return results

        return run

    quick = made.runs.with_limits(Limits(handover_timeout_seconds=1.0))
    assert quick.run(around=interrupted) is RunOutcome.FENCED  # type: ignore[arg-type]  # a runner
    expected = sorted(folded([(offset, "s", value) for offset, value in enumerate(values)]), key=repr)
    assert rows(made.runs, topic) == expected
    assert_proven(made.runs)


def test_tables_are_compacted_cleaned_up_erased_and_rewound(made: Platform, object_store: ObjectStore) -> None:
    values = session(9)
    topic = made.feed.create("values")
    read_in_batches(made.feed, made.runs, topic, values)
    made.feed.send(topic, session(3), key="bob")
    made.runs.run()
    before = rows(made.runs, topic)
    close_hour(made.runs.folders)
    compact_stream(made.runs.folders)
    assert len(named_files(object_store.find_file(made.runs.folders.table))) == 1
    assert rows(made.runs, topic) == before
    rewind_stream(made.runs.handle, "4", who="ann", why="wrong rows")
    made.runs.run()
    assert rows(made.runs, topic) == before
    for arguments in (
        ("housekeeping", "adding"),
        ("stop", "adding", "--why", "erasure"),
        ("erase", "adding", "--session", "bob", "--drop-state", "--why", "request 4711", "--yes"),
        ("housekeeping", "adding"),
        ("repair", "adding", "--plan"),
        ("savepoint", "make", "adding", "tuesday", "--why", "release"),
        ("verify", "adding"),
        ("status", "adding"),
        ("history", "adding"),
        ("report", "adding"),
        ("settings",),
    ):
        done = made.call(*arguments)
        assert done.exit_code in {0, 2} if arguments[0] == "status" else done.exit_code == 0, (arguments, done.output)
    left = [row for row in before if row[2] != "bob"]
    assert rows(made.runs, topic) == left
    said = made.call("query", "SELECT count(*) AS rows FROM adding", "--json")
    assert str(len(left)) in said.stdout, said.output


def test_a_shadow_is_compared_promoted_and_dropped(made: Platform) -> None:
    live = made.runs.of(adding(made.feed.pattern, transform=Mended()))
    topic = made.feed.create("values")
    read_in_batches(made.feed, live, topic, session(9))
    begin_shadow(made.runs.handle, "other", "2", code="", who="ann", why="a fix")
    shadow = made.runs.of(dataclasses.replace(made.runs.stream, name="other"))
    shadow.run()
    assert_proven(shadow)
    assert compare_streams(live.folders, shadow.folders).changed == 0
    promote_shadow(made.runs.handle, "other", who="ann", why="the fix")
    made.runs.run()
    expected = sorted(folded([(offset, "s", value) for offset, value in enumerate(session(9))]), key=repr)
    assert rows(made.runs, topic) == expected
    assert_proven(made.runs)
    drop_shadow("adding", "other", made.runs.settings, who="ann")
    assert find_storage(made.runs.folders.root).list_names(made.runs.folders.root) == ["adding"]
    assert_proven(made.runs)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["table", "ledger"])
def test_a_shadow_whose_deletion_was_killed_is_deleted_before_another_one_of_its_name_begins(
    made: Platform, left: str
) -> None:
    """The new shadow must not use the old shadow's side tables, whose positions are those of another batch."""
    folders = made.runs.folders
    topic = made.feed.create("values")
    storage = find_storage(folders.root)
    other = StreamFolders("other", folders.root)
    read_in_batches(made.feed, made.runs, topic, session(9))
    begin_shadow(made.runs.handle, "other", "2", code="", who="ann", why="a fix")
    if left == "table":
        storage.delete(make_entry_path(other.table, 0))
    else:
        storage.delete_folder(other.table)
    with pytest.raises(TableError, match="the rest of a stream") as refused:
        begin_shadow(made.runs.handle, "other", "3", code="", who="ann", why="a fix")
    assert "lockstep shadow drop STREAM --name other" in str(refused.value)
    drop_shadow("adding", "other", made.runs.settings, who="ann")
    assert storage.list_names(folders.root) == ["adding"]
    begin_shadow(made.runs.handle, "other", "3", code="", who="ann", why="a fix")
    shadow = made.runs.of(dataclasses.replace(made.runs.stream, name="other"))
    shadow.run()
    assert_proven(shadow)


@pytest.mark.slow
def test_the_proof_and_the_clean_up_ask_for_a_file_as_a_whole(made: Platform, link: Link) -> None:
    """Reads by column would take 136 requests per ledger file: an hour for the proof of an hour of batches."""
    topic = made.feed.create("values")
    read_in_batches(made.feed, made.runs, topic, session(11))
    link.asked.clear()
    assert_proven(made.runs)
    asked = Counter(line for line in link.asked if ".parquet" in line and "checkpoint" not in line)
    assert {line.rpartition("/")[2].partition("-")[0] for line in asked} >= {"ledger", "rows"}
    assert max(asked.values()) <= 4
    close_hour(made.runs.folders)
    compact_stream(made.runs.folders)
    link.asked.clear()
    done = run_housekeeping(made.runs.folders, retention_seconds=0)
    steps = [step for step in done.steps if step.files]
    deletions = [line for line in link.asked if line.startswith(("POST", "DELETE"))]
    assert len(deletions) == len(steps) < sum(step.files for step in steps)
    assert_proven(made.runs)


@pytest.mark.slow
def test_the_state_of_several_partitions_is_asked_for_at_the_same_time(made: Platform, link: Link) -> None:
    """A start reads each state's header in one request; a rebuilt local store reads its whole chain."""
    partitions = range(6)
    topic = made.feed.create("values", partitions=len(partitions))
    for offset in range(0, 6, 2):
        for partition in partitions:
            made.feed.send(topic, session(5)[offset : offset + 2], key=f"k{partition}", partition=partition)
        made.runs.run()
    link.asked.clear()
    assert made.runs.run() is RunOutcome.ENDED
    read = [line for line in link.asked if line.endswith(".state") and line.startswith("GET")]
    assert len(read) == len(partitions)
    shutil.rmtree(made.runs.settings.local_root)
    for partition in partitions:
        made.feed.send(topic, [update(7, a=1)], key=f"k{partition}", partition=partition)
    made.runs.run()
    assert_proven(made.runs)


def test_a_command_names_the_next_step_where_the_store_refuses_or_is_gone(
    made: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints no traceback, and the doctor does not wait for the store."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    open_object_storage.cache_clear()
    refused = made.call("status", "adding")
    assert (refused.exit_code, type(refused.exception)) == (1, SystemExit)
    assert "AWS_SECRET_ACCESS_KEY" in refused.output
    (port,) = find_free_ports(1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    open_object_storage.cache_clear()
    found = json.loads(made.call("doctor", "--json").stdout)["findings"]
    open_object_storage.cache_clear()
    (root,) = (each for each in found if each["check"].startswith("table"))
    assert root["level"] == "error"
    assert "AWS_ENDPOINT_URL" in root["next_step"]


@pytest.mark.slow
def test_dagster_runs_checks_and_compacts_a_stream(broker: Broker, prefix: Path, tmp_path: Path) -> None:
    """Stream and check are in one process: its Spark loads the client of the store for both."""
    installation = Installation(tmp_path, broker.bootstrap_servers, tables=prefix)
    installation.produce("store", 0, 400)
    runs = [installation.materialize(available_now=True)]
    assert runs[0].wait() == 0, runs[0].said()
    close_hour(installation.folders)
    runs.append(installation.start("job", "execute", "-j", "order_books_compaction"))
    assert runs[1].wait() == 0, runs[1].said()
    with installation.dagster() as instance:
        keys = [AssetCheckKey(AssetKey(["order_books", "table"]), "completeness")]
        (found,) = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys).values()
    assert found.status is AssetCheckExecutionRecordStatus.SUCCEEDED
    assert installation.position("store") == 400
