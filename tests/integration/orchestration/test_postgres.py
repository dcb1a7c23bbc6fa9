"""Dagster on Postgres, as in an installation of several machines: a stream continues while the server is away.

The tests share one table and one Kafka, in this order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterRunStatus

from lockstep.table.head import Desired
from tests.integration.orchestration.test_comeback import Site
from tests.integration.orchestration.test_dagster_faults import HANDOVER_SECONDS, webserver
from tests.support.installation import Installation, wait_until
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from lockstep.features.localdev.broker import Broker

pytestmark = pytest.mark.slow

AWAY_SECONDS = 75.0
"""The run reports to Dagster once a minute."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, kafka: Broker, postgres: Postgres) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    made = Installation(folder, kafka.bootstrap_servers, make_storage=postgres.make_storage)
    yield made
    made.kill_runs()


def test_a_bounded_run_commits_and_is_recorded(site: Site) -> None:
    site.installation.produce("first", 0, 50)
    assert site.installation.materialize(available_now=True, home=site.home).wait() == 0
    assert site.installation.position("first") == 50
    assert [run.status for run in site.runs()] == [DagsterRunStatus.SUCCESS]


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_a_stream_writes_on_while_postgres_is_away_and_a_new_topic_waits(
    site: Site, postgres: Postgres, how: str
) -> None:
    away: AbstractContextManager[None] = postgres.frozen() if how == "frozen" else postgres.stopped()
    with site.daemon(served=True) as daemon, webserver(site):
        worker = site.supervised(daemon)
        epoch = site.epoch()
        with away:
            site.installation.produce(f"while_{how}", 0, 50)
            began = time.monotonic()
            while time.monotonic() - began < AWAY_SECONDS:
                site.read_on("the run goes on", messages=10)
                time.sleep(5)
            assert (worker.is_running(), site.epoch()) == (True, epoch)
        wait_until(lambda: site.installation.position(f"while_{how}") == 50, "a handover for it", HANDOVER_SECONDS)
        assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)
        wait_until(lambda: len([run for run in site.runs() if not run.is_finished]) == 1, "the old run ends in Dagster")
        site.read_on("the run goes on after it")


def test_a_run_that_is_killed_while_postgres_is_away_is_replaced_once_it_is_back(
    site: Site, postgres: Postgres
) -> None:
    with site.daemon(served=True) as daemon, webserver(site):
        worker = site.supervised(daemon)
        epoch = site.epoch()
        killed = site.writer().run_id
        with postgres.stopped():
            worker.kill()
            time.sleep(AWAY_SECONDS)
        site.read_on("another run reads")
        assert (site.epoch(), site.desired()) == (epoch + 1, Desired.RUNNING)
        wait_until(lambda: site.run(killed).status is DagsterRunStatus.FAILURE, "the killed run is closed")
