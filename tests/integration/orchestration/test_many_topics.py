"""Hundreds of topics appear within seconds: at most two restarts are requested, and each topic is read whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lockstep.table.commit import OutputLog
from lockstep.table.ledger import read_positions
from tests.integration.orchestration.test_daily_operation import writing_run
from tests.support.feed import ProducerRecord, append
from tests.support.installation import Installation, messages, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.slow

TOPICS = 200
WITHIN_SECONDS = 10
MESSAGES = 5
RESTARTS_MAX = 2


def create_topics(installation: Installation) -> list[str]:
    """Create all topics within some seconds, each with its first messages."""
    admin = AdminClient({"bootstrap.servers": installation.bootstrap_servers, "log_level": 2})
    names = [f"order_books.many{number:03d}" for number in range(TOPICS)]
    sent = [ProducerRecord(each.book, each.value) for each in messages()[:MESSAGES]]
    portion = TOPICS // WITHIN_SECONDS
    for first in range(0, TOPICS, portion):
        began = time.monotonic()
        some = names[first : first + portion]
        for future in admin.create_topics([NewTopic(name, 1) for name in some]).values():
            future.result(60)
        for name in some:
            append(installation.bootstrap_servers, name, sent)
        time.sleep(max(0.0, 1 - (time.monotonic() - began)))
    return names


def positions(installation: Installation) -> Mapping[str, int]:
    head = OutputLog(installation.folders.table).base().head
    return {row.topic: row.until for row in read_positions(installation.folders, head).values()}


def test_they_cost_two_restarts_at_most_and_nothing_of_them_is_missed(installation: Installation) -> None:
    installation.produce("first", 0, 50)
    with installation.daemon():
        installation.run_command("lockstep.cli", "start", "order_books")
        writing_run(installation)
        epoch = installation.epoch()
        names = create_topics(installation)
        wait_until(
            lambda: all(positions(installation).get(name) == MESSAGES for name in names), "all topics are read", 600
        )
        assert 1 <= installation.epoch() - epoch <= RESTARTS_MAX
        writing_run(installation)
        time.sleep(90)  # longer than the sensor's pause: it requests no further run
        assert installation.epoch() - epoch <= RESTARTS_MAX
        installation.run_command("lockstep.cli", "stop", "order_books")
        installation.run_command("lockstep.cli", "verify", "order_books")
