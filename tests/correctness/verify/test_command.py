"""`lockstep verify` for people and scripts: its output and its exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.correctness.verify.forging import Forged
from tests.integration.cli.conftest import platform_in
from tests.support.feed import session, update

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker
    from tests.integration.cli.conftest import Platform


@pytest.fixture
def written(broker: Broker, tmp_path: Path) -> Platform:
    """A platform whose stream has read two partitions."""
    made = platform_in(tmp_path, broker)
    topic = made.feed.create("values", partitions=2)
    made.feed.send(topic, session(30), key="a", partition=0)
    made.feed.send(topic, session(3), key="b", partition=1)
    made.runs.run()
    return made


def forged(platform: Platform) -> Forged:
    return Forged(platform.runs.folders.table.parent)


def test_a_proof_says_what_was_compared_and_ends_with_0(written: Platform) -> None:
    said = written.call("verify", "adding")
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[0] == "adding: proven up to batch 1 (version 2)"
    assert [line.split()[0] for line in lines[2:6]] == ["I1", "I2", "I3", "I8"]
    assert "35 messages: 33 with rows, 2 accepted without row" in said.stdout
    assert "66 rows" in said.stdout


def test_a_violation_is_named_with_its_place_and_ends_with_3(written: Platform) -> None:
    table = forged(written)
    (file,) = table.files("table")
    rows = table.rows("table", file)
    table.change("table", file, 5, total=rows[5]["total"] + 1)
    said = written.call("verify", "adding")
    assert said.exit_code == 3, said.output
    where = f"{rows[5]['_topic']}/{rows[5]['_partition']}"
    found = next(line for line in said.stdout.splitlines() if line.startswith("row changed"))
    assert where in found
    assert f"row {rows[5]['_row']}: total = {rows[5]['total']}" in found
    assert "next: keep all as it is" in said.stdout


def test_at_most_twenty_violations_are_shown_and_the_rest_is_counted(written: Platform) -> None:
    table = forged(written)
    table.forget("table", table.files("table")[0])
    said = written.call("verify", "adding")
    assert said.exit_code == 3
    assert sum(line.startswith("row missing") for line in said.stdout.splitlines()) == 20
    assert "and 46 more" in said.stdout
    document = json.loads(written.call("verify", "adding", "--json").stdout)
    assert len(document["violations"]) == document["violation_count"]


def test_what_cannot_be_read_is_an_error_and_no_violation(written: Platform) -> None:
    written.environment["LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS"] = "127.0.0.1:1"
    written.environment["LOCKSTEP_KAFKA__TIMEOUT_SECONDS"] = "1"
    said = written.call("verify", "adding")
    assert said.exit_code == 1, said.output
    assert "could not be read from Kafka (127.0.0.1:1): 127.0.0.1:1: Connect to " in said.stderr
    assert "Connection refused" in said.stderr
    assert "next: check kafka.bootstrap_servers and that the brokers are up; then repeat the command" in said.stderr
    asked = written.call("message", "adding", f"{written.feed.family}.values/0@0")
    assert (asked.exit_code, asked.stderr) == (1, said.stderr)


def test_a_stream_that_never_ran_is_said_so(broker: Broker, tmp_path: Path) -> None:
    said = platform_in(tmp_path, broker).call("verify", "adding")
    assert said.exit_code == 1
    assert "has no table yet" in said.stderr


def test_a_later_start_is_said_with_the_batch_whose_state_it_took(written: Platform) -> None:
    """Kafka has lost the first messages: the proof starts behind them, with the state stored at that offset."""
    written.feed.send(f"{written.feed.family}.values", [update(5, a=1)], key="b", partition=1)
    written.runs.run()
    delete_before(written, 1, 4)
    document = json.loads(written.call("verify", "adding", "--json").stdout)
    late = next(scope for scope in document["scopes"] if scope["partition"] == 1)
    assert (document["status"], late["proven_from"], late["until"]) == ("proven", 4, 5)
    assert "state before it taken from batch 1" in late["note"]


def test_rows_before_a_later_start_are_still_counted(written: Platform) -> None:
    written.feed.send(f"{written.feed.family}.values", [update(5, a=1)], key="b", partition=1)
    written.runs.run()
    delete_before(written, 1, 4)
    table = forged(written)
    file = table.files("table")[0]
    rows = table.rows("table", file)
    lost = next(at for at, row in enumerate(rows) if row["_partition"] == 1)
    table.rewrite("table", file, rows[:lost] + rows[lost + 1 :])
    document = json.loads(written.call("verify", "adding", "--json").stdout)
    assert [each["kind"] for each in document["violations"]] == ["wrong count in the ledger"]


def delete_before(platform: Platform, partition: int, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": platform.feed.bootstrap_servers})
    where = TopicPartition(f"{platform.feed.family}.values", partition, offset)
    admin.delete_records([where])[where].result(60.0)


def test_a_proof_that_dies_does_not_end_as_if_something_were_violated(
    written: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error, such as `KeyError`, ends like any Python error."""

    def dies(*_: object) -> None:
        raise KeyError("unit")

    monkeypatch.setattr("lockstep.verify.verify.verify_stream", dies)
    said = written.call("verify", "adding")
    assert (said.exit_code, repr(said.exception)) == (1, "KeyError('unit')")
