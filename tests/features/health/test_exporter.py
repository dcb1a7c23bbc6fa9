"""The exporter, scraped over HTTP: real Kafka and tables, a stream that never ran, and a stream without Kafka."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a separate package
from prometheus_client.parser import text_string_to_metric_families

from lockstep import Every
from lockstep.errors import EnvironmentProblem
from lockstep.features.health.exporter import (
    FOLLOWER_METRICS,
    FURTHER_METRICS,
    LABELLED_METRICS,
    METRICS_PORT,
    PARTITION_METRIC,
    PHASE_METRIC,
    STREAM_COUNTERS,
    STREAM_METRICS,
    WRITER_METRICS,
    HealthCollector,
    StreamSnapshot,
    make_metrics,
    start_exporter,
)
from lockstep.operations.alarms import AlarmKind, HealthFacts
from lockstep.operations.followers import FollowerLag
from lockstep.operations.inspect.health import Health
from lockstep.settings import KafkaSettings
from lockstep.table.follower_positions import FollowerName
from lockstep.table.head import Desired
from tests.support.feed import ProducerRecord, session, update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

ROOT = Path(__file__).parents[3]
HOUR = 3_600
OTHER_METRICS = FURTHER_METRICS | FOLLOWER_METRICS | WRITER_METRICS | LABELLED_METRICS
NAMES = {*(each.name for each in STREAM_METRICS), *(f"{each.name}_total" for each in STREAM_COUNTERS), *OTHER_METRICS}

Samples = dict[tuple[str, ...], float]


@contextmanager
def exporting(collector: HealthCollector) -> Iterator[str]:
    """Run an exporter and return its address."""
    server = start_exporter(collector, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def scrape(address: str) -> Samples:
    """Return each sample by its name, its stream and the value of its other label."""
    with urlopen(address, timeout=30) as answer:  # noqa: S310  # loopback
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    assert {sample.name for sample in samples} <= NAMES
    others = [[value for label, value in sample.labels.items() if label != "stream"] for sample in samples]
    return {
        (sample.name, sample.labels["stream"], *other): sample.value
        for sample, other in zip(samples, others, strict=True)
    }


def test_every_stream_is_reported_whether_it_lives_or_not(feed: Feed, runs: LocalRuns) -> None:
    read, late = (feed.create(name, config={"retention.ms": str(HOUR * 1000)}) for name in ("read", "late"))
    feed.send(read, session(2))
    runs.run()
    feed.append(late, [ProducerRecord("s", update(4, a=1), int((time.time() - 55 * 60) * 1000))] * 3)
    never = dataclasses.replace(runs.stream, name="never")
    with exporting(HealthCollector([runs.stream, never], runs.settings)) as address:
        found = scrape(address)
        feed.append(late, [ProducerRecord("s", update(4, a=1))])
        assert scrape(address) == found  # the same snapshot

    assert {
        name: value for (name, *labels), value in found.items() if labels == ["never"] and "scrape" not in name
    } == {"lockstep_up": 0.0}
    assert {value for (name, *labels), value in found.items() if name == "lockstep_alarm" and "never" in labels} == {0}
    assert found["lockstep_topic_lag_messages", "adding", read] == 0.0
    assert found["lockstep_topic_lag_messages", "adding", late] == 3.0
    assert found["lockstep_alarm", "adding", "headroom"] == 2.0
    own = {name: value for (name, *labels), value in found.items() if labels == ["adding"]}
    exact = {"up": 0, "kafka_up": 1, "lag_messages": 3, "topics": 2, "partitions": 2, "unavailable_partitions": 0}
    exact |= {"open_transaction_seconds": 0, "batches_total": 0, "committed_offsets_total": 0, "claims_total": 0}
    exact |= {
        "quarantined_messages_total": 0,
        "quarantine_size": 0,
        "uncompacted_hours": 0,
        "uncompacted_files": 0,
    }
    assert {name: own[f"lockstep_{name}"] for name in exact} == exact
    assert 0 < own["lockstep_headroom_seconds"] <= 300
    assert 55 * 60 <= own["lockstep_oldest_unread_seconds"] < HOUR
    assert {name for name, *labels in found if labels == ["adding"]} | set(OTHER_METRICS) == NAMES
    assert len([name for name, *_ in found]) < 50 * 2


def test_a_live_writer_has_rates_phases_and_on_request_its_partitions(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values", partitions=3)
    feed.send(topic, session(2), partition=1)
    stop = threading.Event()
    run = threading.Thread(target=lambda: runs.run(trigger=Every(seconds=0.1), stop=stop))
    run.start()
    try:
        while not runs.reports or not runs.reports[-1].rows:
            time.sleep(0.1)
        time.sleep(1.0)  # two reports
        with exporting(HealthCollector([runs.stream], runs.settings, has_partitions=True)) as address:
            found = scrape(address)
    finally:
        stop.set()
        run.join()
    lags = {frozenset(names[2:]): lag for names, lag in found.items() if names[0] == PARTITION_METRIC}
    assert lags == {frozenset((topic, str(number))): 0.0 for number in range(3)}
    assert found["lockstep_messages_per_second", "adding"] > 0
    assert found["lockstep_rows_per_second", "adding"] > 0
    assert found["lockstep_task_cpu_cores", "adding"] > 0
    phases = {name[2] for name in found if name[0] == PHASE_METRIC}
    assert phases == {"plan", "tasks", "checks", "commit"}
    with exporting(HealthCollector([runs.stream], runs.settings)) as address:
        assert not {PARTITION_METRIC, PHASE_METRIC, *WRITER_METRICS} & {name for name, *_ in scrape(address)}


def test_what_is_unknown_is_absent_and_never_zero(feed: Feed, runs: LocalRuns) -> None:
    feed.send(feed.create("values"), session(2))
    runs.run()
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.2)
    settings = runs.settings.model_copy(update={"kafka": nowhere})
    with exporting(HealthCollector([runs.stream], settings)) as address:
        found = scrape(address)
    assert found["lockstep_kafka_up", "adding"] == 0.0
    assert found["lockstep_alarm", "adding", "kafka"] == 2.0
    assert ("lockstep_alarm", "adding", "headroom") not in found
    assert ("lockstep_lag_messages", "adding") not in found
    assert found["lockstep_desired_state", "adding", "bounded"] == 1.0


def test_each_follower_has_its_lag_and_its_freshness() -> None:
    names = [FollowerName("derived", "activity"), FollowerName("export", "adding")]
    lags = (
        FollowerLag(name=names[0], command="c", unread_batches=7, last_run_seconds=1.0, freshness_seconds=2.5),
        FollowerLag(name=names[1], command="c", unread_batches=0, last_run_seconds=1.0),
    )
    facts = HealthFacts(stream="adding", desired=Desired.RUNNING, followers=lags)
    looks = [StreamSnapshot(Health(facts=facts, alarms=(), figures={}), 0.1)]
    families = [family for family in make_metrics(looks) if family.name in FOLLOWER_METRICS]
    samples = list(chain.from_iterable(family.samples for family in families))
    assert {(each.name, each.labels["kind"], each.labels["follower"]): each.value for each in samples} == {
        ("lockstep_follower_unread_batches", "derived", "activity"): 7.0,
        ("lockstep_follower_unread_batches", "export", "adding"): 0.0,
        ("lockstep_follower_freshness_seconds", "derived", "activity"): 2.5,
    }
    assert {each.labels["stream"] for each in samples} == {"adding"}


def test_a_port_that_is_taken_is_said(runs: LocalRuns) -> None:
    collector = HealthCollector([], runs.settings)
    with exporting(collector) as address:
        port = int(address.split(":")[2].partition("/")[0])
        with pytest.raises(EnvironmentProblem, match=f"port {port} of 127.0.0.1 cannot be used"):
            start_exporter(collector, "127.0.0.1", port)


def test_the_page_lists_the_metrics_with_their_meaning() -> None:
    page = (ROOT / "docs" / "health.md").read_text()
    listed = re.findall(r"^\| `(lockstep_\w+)` \| (gauge|counter) \| (.+) \|$", page, re.MULTILINE)
    expected = [(each.name, "gauge", each.meaning) for each in STREAM_METRICS]
    expected += [(f"{each.name}_total", "counter", each.meaning) for each in STREAM_COUNTERS]
    assert listed == [*expected, *((name, "gauge", meaning) for name, meaning in OTHER_METRICS.items())]


def test_the_dashboard_and_the_example_for_prometheus_name_what_there_is() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "lockstep.json").read_text())
    shown = {target["expr"] for panel in board["panels"] for target in panel.get("targets", ())}
    assert {name for expression in shown for name in re.findall(r"lockstep_\w+", expression)} <= NAMES
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    example = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    assert example["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{METRICS_PORT}"]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
    assert {name for rule in rules for name in re.findall(r"lockstep_\w+", rule["expr"])} <= NAMES
    assert example["rule_files"] == ["prometheus-alerts.yml"]
    assert len(AlarmKind) < 20  # each kind is a series per stream
