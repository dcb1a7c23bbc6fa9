"""A real run whose hour is closed between the work of a batch and its commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lockstep import AvailableNow
from lockstep.engine.driver.context import NO_REPORTS, RunContext
from lockstep.engine.driver.loop import RunOutcome, run_batches
from lockstep.engine.driver.planner import BatchPlan
from lockstep.engine.driver.run import make_job
from lockstep.engine.driver.spark_job import Runner
from lockstep.engine.driver.startup import Launch, WriterStartup
from lockstep.engine.driver.topic_history import TopicHistory
from lockstep.engine.protocol import TaskResult
from lockstep.features.compaction.run import compact_stream
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.producer import produce
from lockstep.kafka.admin import ClusterAdmin
from lockstep.kafka.client import make_admin_client
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.operations.lifecycle import close_hour
from lockstep.settings import KafkaSettings, Settings
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_ledger
from tests.features.compaction.counting import counting
from tests.support.local_runs import make_local_runner
from tests.support.stream_table import live_files, stored_rows

MESSAGES = 40


class Message(msgspec.Struct):
    """A message to produce."""

    key: bytes
    value: bytes
    timestamp_ms: int


def test_a_batch_that_loses_to_a_close_is_planned_again_for_the_next_hour(
    broker: Broker, topic_family: str, tmp_path: Path
) -> None:
    messages = [Message(b"k", msgspec.json.encode({"number": n}), 1_700_000_000_000 + n) for n in range(MESSAGES)]
    produce(broker.bootstrap_servers, topic_family, messages)
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
        table_root=tmp_path / "tables",
        local_root=tmp_path / "local",
    )
    stream = counting(topic_family)
    folders = StreamFolders(stream.name, settings.table_root)
    admin = ClusterAdmin(make_admin_client(settings.kafka), settings.kafka.timeout_seconds)
    startup = WriterStartup(stream, folders, admin.cluster_id())
    plans: list[BatchPlan] = []
    hands = RunContext(
        stream=stream,
        trigger=AvailableNow(),
        folders=folders,
        admin=admin,
        group=ConsumerGroup(settings.kafka, stream.name),
        runner=closing_once(make_local_runner(make_job(stream, settings, folders)), folders, plans),
        cores=lambda: 1,
        stop=threading.Event(),
        reports=NO_REPORTS,
        launch=Launch(cause="test"),
        history=TopicHistory(),
    )
    outcome = run_batches(hands, startup.claim(cancelled=lambda: False))
    head = startup.output.base().head
    assert (outcome, len(stored_rows(folders))) == (RunOutcome.ENDED, MESSAGES - 1)
    assert [plan.batch.number for plan in plans] == [1, 2, 2]
    hours = [plan.batch.commit_hour for plan in plans]
    assert hours[0] == hours[1] == head.closed_hour < hours[2] == head.hour
    assert [(row.batch, row.start) for row in read_ledger(folders.ledger) if row.messages] == [(1, 0), (2, 20)]
    assert compact_stream(folders).bins == 0
    assert len(live_files(folders)) == 2


def closing_once(runner: Runner, folders: StreamFolders, plans: list[BatchPlan]) -> Runner:
    """Return a runner that closes the open hour between the work of the second batch and its commit."""

    def run(plan: BatchPlan) -> Sequence[TaskResult]:
        plans.append(plan)
        results = runner(plan)
        if len(plans) == 2:
            close_hour(folders)
        return results

    return run
