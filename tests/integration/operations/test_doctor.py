"""`lockstep doctor` finds no fault in a good installation, and names each fault with its remedy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from lockstep import NoIntegrity
from lockstep.errors import LockstepError
from lockstep.operations.doctor.definitions import check_definitions
from lockstep.operations.doctor.diagnosis import Diagnosis, Level
from lockstep.operations.doctor.doctor import Report, run_diagnoses, with_brokers
from lockstep.operations.doctor.kafka import Fitness, judge_api_versions, summarize_checks
from lockstep.operations.doctor.machine import check_table_root, find_file_system
from lockstep.settings import TopicIdentity
from tests.support.adding_stream import adding
from tests.support.feed import snapshot
from tests.support.installation import ROOT
from tests.support.tiers import first_usual

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NOWHERE = "127.0.0.1:1"


def bad(report: Report) -> dict[str, Diagnosis]:
    return {finding.check: finding for finding in report.findings if finding.level is not Level.OK}


def test_a_single_broker_is_no_error_and_its_one_copy_is_said(feed: Feed, runs: LocalRuns) -> None:
    feed.create("values")
    report = run_diagnoses(runs.settings, lambda: {"adding": runs.stream})
    assert report.is_healthy, bad(report)
    assert bad(report)["topics of adding: replication.factor"].level is Level.WARNING
    assert {finding.check for finding in report.findings} >= {"Java", "jars (delta)", "exclusive creation", "fsync"}


def test_a_compacted_topic_is_an_error_for_a_class_that_needs_every_message(feed: Feed, runs: LocalRuns) -> None:
    feed.create("values", config={"cleanup.policy": "compact"})
    strict = run_diagnoses(runs.settings, lambda: {"adding": runs.stream})
    assert not strict.is_healthy
    assert "cleanup.policy=delete" in bad(strict)["topics of adding: cleanup.policy"].next_step
    loose = run_diagnoses(runs.settings, lambda: {"adding": adding(feed.pattern, NoIntegrity())})
    assert loose.is_healthy, bad(loose)


def test_messages_from_the_future_say_that_a_clock_is_wrong(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    producer = Producer({"bootstrap.servers": feed.bootstrap_servers})
    producer.produce(topic, value=snapshot(1, a=1), timestamp=int((time.time() + 3600) * 1000))
    assert producer.flush(30) == 0
    report = run_diagnoses(runs.settings, lambda: {"adding": runs.stream})
    assert "messages from the future" in bad(report)["clocks of adding"].found


def test_a_cluster_that_does_not_answer_is_one_error_and_hides_nothing_else(runs: LocalRuns) -> None:
    settings = with_brokers(runs.settings, NOWHERE)
    kafka = settings.kafka.model_copy(update={"timeout_seconds": 1.0})
    report = run_diagnoses(settings.model_copy(update={"kafka": kafka}), dict)
    assert [(f.check, f.level) for f in report.findings if f.level is Level.ERROR] == [("Kafka", Level.ERROR)]
    assert report.brokers == NOWHERE


NEW = {"Metadata": 13, "OffsetForLeaderEpoch": 4}
OLD = {"Metadata": 9, "OffsetForLeaderEpoch": 3}


@pytest.mark.parametrize(
    ("versions", "identity", "levels"),
    [
        ({"a:1": NEW, "b:1": NEW}, TopicIdentity.ID, [Level.OK]),
        ({"a:1": NEW, "b:1": OLD}, TopicIdentity.ID, [Level.ERROR]),
        ({"a:1": OLD}, TopicIdentity.NAME, [Level.WARNING]),
        ({"a:1": NEW}, TopicIdentity.NAME, [Level.WARNING]),
        ({"a:1": {"Metadata": 12}}, TopicIdentity.ID, [Level.OK, Level.WARNING]),
        ({"a:1": NEW, "b:1": {}}, TopicIdentity.ID, [Level.WARNING, Level.OK]),
        ({"a:1": {}}, TopicIdentity.ID, [Level.WARNING]),
    ],
)
def test_the_requests_that_brokers_know_decide_about_topic_ids(
    versions: dict[str, dict[str, int]], identity: TopicIdentity, levels: list[Level]
) -> None:
    found = list(judge_api_versions(versions, identity))
    assert [each.level for each in found] == levels
    assert all(each.next_step for each in found if each.level is not Level.OK)


def test_the_versions_of_a_real_broker_are_read(runs: LocalRuns) -> None:
    report = run_diagnoses(runs.settings, dict)
    (found,) = [each for each in report.findings if each.check == "Kafka: API versions"]
    assert (found.level, found.found) == (Level.OK, "Metadata up to version 13, topic ids need version 10")


def test_brokers_that_are_no_address_are_refused(runs: LocalRuns) -> None:
    with pytest.raises(LockstepError, match="not host:port"):
        with_brokers(runs.settings, "nonsense")


def test_a_root_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = check_table_root(tmp_path / "file" / "tables")
    assert (found.check, found.level) == ("table root", Level.ERROR)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_kind_of_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw\ntmpfs {tmp_path} tmpfs rw\nserver:/x {tmp_path}/far\\040away nfs4 rw\n"
    folders = (tmp_path / "far away" / "x", tmp_path / "tables", tmp_path.parent)
    assert [find_file_system(folder, mounts) for folder in folders] == ["nfs4", "tmpfs", "ext4"]


def test_topics_with_the_same_fault_are_one_finding() -> None:
    looks = [
        Fitness(
            topic=f"t{n}", setting="retention.ms", found="60000", level=Level.WARNING, reason="short", remedy="more"
        )
        for n in range(5)
    ]
    first, second = summarize_checks("adding", looks)
    assert (first.level, second.level) == (Level.OK, Level.WARNING)
    assert second.found == "60000: short (t0, t1, t2 and 2 more)"


BROKEN = {
    "names that meet": (
        "import dagster as d; defs = d.Definitions(assets=[d.asset(name='orders')(f) for f in (lambda: 0, lambda: 1)])",
        "orders",
    ),
    "an import that fails": ("import no_such_package", "No module named 'no_such_package'"),
    "a syntax error": ("def (", "SyntaxError"),
}


@pytest.mark.parametrize("what", first_usual(3, ["good", "none", *BROKEN]))
def test_definitions_that_dagster_does_not_load_are_an_error_with_its_text(tmp_path: Path, what: str) -> None:
    source, text = BROKEN.get(what, ("from dagster import Definitions; defs = Definitions()", ""))
    (tmp_path / "definitions.py").write_text(source)
    if what != "none":
        (tmp_path / "workspace.yaml").write_bytes((ROOT / "workspace.yaml").read_bytes())
    before = sorted(tmp_path.iterdir())
    found = list(check_definitions(tmp_path))
    assert [each for each in sorted(tmp_path.iterdir()) if each.name != "__pycache__"] == before
    levels = {"good": [Level.OK], "none": []}.get(what, [Level.ERROR])
    assert [each.level for each in found] == levels
    assert all(text in each.found for each in found)
