"""Shared parts of the tests: profiles of properties, distribution over workers, Kafka, and Spark.

`make test` runs several workers. Each has one broker and at most one Spark, started at the first request of a test. The
tests of a module run in one worker, which sets up its fixtures once. Modules that need Spark form two groups.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import time
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

    from lockstep.features.localdev.broker import Broker
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns
    from tests.support.stream_table import StreamTable


# No deadline: a busy machine is not an error. The examples are the same in each run, so that a failure is due to a
# change; `pytest --hypothesis-profile search` tries other and more examples.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=100)  # `make test-all`
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("same")


for output in ("MARKET_DATABASE", "MARKET_ALERTS"):
    os.environ.pop(output, None)  # a shell with the addresses of `make up` would let tests write there


WORKERS_MIN, WORKERS_MAX = 3, 8
"""Cores plus three, because tests wait for Kafka and Dagster longer than they compute.

Four workers used 1.3 of 2 cores. Each worker uses up to 2 GB.
"""

QUALITY_MODULES = (
    "tests/features/quality/test_asset_checks.py",
    "tests/features/quality/test_check.py",
    "tests/features/quality/test_faults.py",
    "tests/features/quality/test_ready_folds.py",
    "tests/features/quality/test_rules.py",
    "tests/features/quality/test_suite.py",
    "tests/correctness/event_time/test_check.py",
    "tests/correctness/walk/test_checks.py",
    "tests/house/benchmarks/test_quality.py",
)
"""They run in one worker: Great Expectations costs 7 s of CPU to import, and Spark 10 to 17 s to start."""

SPARK_MODULES = (
    *QUALITY_MODULES,
    "tests/streams/order_books/test_stream.py",
    "tests/integration/readers/test_changes.py",
    "tests/integration/readers/test_current_rows.py",
    "tests/integration/readers/test_readers.py",
    "tests/integration/readers/test_generated_values.py",
    "tests/integration/table/test_statistics.py",
    "tests/integration/table/test_row_encoder.py",
    "tests/features/compaction/test_spark.py",
    "tests/features/derived/test_derive_end_to_end.py",
    "tests/faults/matrix/test_damage.py",
    "tests/faults/matrix/test_workers.py",
    "tests/integration/cluster/test_cancelled_jobs.py",
    "tests/integration/cluster/test_deadline.py",
    "tests/integration/cluster/test_shared_spark.py",
    "tests/integration/cluster/test_worker_daemon.py",
    "tests/integration/security/test_listeners.py",
)
"""Quality modules share one worker and the other Spark modules a second.

In a single worker they took a third of all CPU time, and the suite had to wait for it at the end. A second Spark costs
less.
"""

HARMED_MODULES = (
    "tests/faults/matrix/test_cut_logs.py",
    "tests/faults/matrix/test_kafka_logs.py",
    "tests/integration/operations/test_resume_topics.py",
    "tests/features/localdev/test_broker.py",
)
"""They run in one worker: a second broker, which they kill, costs 5 s of CPU to start."""

STORE_MODULES = (
    "tests/integration/object_store/test_current.py",
    "tests/integration/object_store/test_stream.py",
    "tests/integration/object_store/test_restore.py",
    "tests/integration/object_store/test_export.py",
    "tests/integration/object_store/test_storage.py",
)
"""They run in one worker: another object store costs 4 s of CPU until its code is compiled."""

TYPED_MODULES = (
    "tests/house/typing/test_user_types.py",
    "tests/streams/tutorial/test_tutorial.py",
    "tests/extensions/pages/test_pages.py",
    "tests/features/inference/test_new_command.py",
)
"""They run in one worker: mypy takes 9 s of CPU to read the library, and 1 s with a filled cache."""

LONGEST_MODULES = (
    "tests/integration/orchestration/test_daily_operation.py",
    "tests/correctness/verify/test_prover.py",
    "tests/integration/orchestration/test_comeback.py",
    "tests/integration/cli/test_new_project.py",
    "tests/faults/crash/test_kills.py",
    "tests/features/delivery/test_kafka_delivery.py",
    "tests/features/delivery/test_postgres_delivery.py",
    "tests/features/delivery/test_changes.py",
    "tests/correctness/replay/test_replay.py",
    "tests/integration/engine/test_outage.py",
    "tests/correctness/verify/test_replayed_tables.py",
    "tests/correctness/verify/test_circumstances.py",
    "tests/features/copies/test_relocate_to_mirror.py",
    "tests/correctness/verdicts/test_through_the_broker.py",
    "tests/features/delivery/test_killed_rebuild.py",
    "tests/integration/operations/test_doctor.py",
    "tests/correctness/verify/test_clean_tables.py",
)
"""By measured CPU time, from 90 seconds down to 15; the daily operation of Dagster waits longer than it computes."""

SCOPES = {
    **dict.fromkeys(SPARK_MODULES, "spark"),
    **dict.fromkeys(QUALITY_MODULES, "quality"),
    **dict.fromkeys(HARMED_MODULES, "harmed broker"),
    **dict.fromkeys(STORE_MODULES, "object store"),
    **dict.fromkeys(TYPED_MODULES, "typed"),
}
FIRST_MODULES = (LONGEST_MODULES[0], *SPARK_MODULES, *STORE_MODULES, *LONGEST_MODULES[1:], *HARMED_MODULES)
"""The longest modules start first, so that no worker runs them alone at the end."""

MARKERS = {
    "broker": {"broker", "harmed_broker", "own_broker", "secured", "installation"},
    "spark": {"shared_spark"},
}
"""Markers by the fixtures that set them."""


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers for `-n auto`: 5 on 2 cores."""
    return max(WORKERS_MIN, min(WORKERS_MAX, len(os.sched_getaffinity(0)) + 3))


@pytest.fixture(autouse=True)
def _own_code() -> Iterator[None]:
    """At the end of a test, forget the copies of code that its commands registered in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockstep.model.code_version._IMPORTED", {})
        yield


@pytest.fixture(scope="module", autouse=True)
def _one_hour() -> Iterator[None]:
    """Batches of a module have the same commit hour, unless a test sets it: a next hour would be another partition."""
    began = time.time()

    class Clock(datetime):
        @classmethod
        def now(cls, _: object = None) -> Self:
            return cls.fromtimestamp(began, UTC)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockstep.model.commit_hour.datetime", Clock)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick_repetitions() -> Iterator[None]:
    """Avoid repeated work of each test: the parser of all commands, and most full collections.

    The process of many tests grows by more than tasks, and a full collection visits the objects of all modules.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "typer.testing" in sys.modules:
            patch.setattr("typer.testing._get_command", cache(sys.modules["typer.main"].get_command))
        if "lockstep.engine.executor.task" in sys.modules:
            from lockstep.engine.executor.collector import CollectorSchedule

            rare = CollectorSchedule(clock=lambda: time.monotonic() / 5, read_memory=lambda: 0)
            patch.setattr("lockstep.engine.executor.task._COLLECTOR", rare)
        yield


class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # the same
    """Assigns modules to workers in the order of collection; each group of `SCOPES` counts as one module."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        """Keep the order of collection, which starts with the longest modules."""
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return SCOPES.get(module, module)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByModule:
    """Use this scheduler for any value of `--dist`."""
    return ByModule(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need a broker or Spark, by their fixtures; in a worker, put the longest modules first."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in MARKERS.items():
            if asked & fixtures:
                item.add_marker(marker)
        if item.get_closest_marker("spark") and _module(item) not in SPARK_MODULES:
            raise pytest.UsageError(f"{_module(item)} needs Spark: add it to SPARK_MODULES of tests/conftest.py")
    if hasattr(config, "workerinput"):
        ranks = {module: rank for rank, module in enumerate(FIRST_MODULES)}
        items.sort(key=lambda item: ranks.get(_module(item), len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude collected objects from garbage collection: searching them costs each worker a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let the end of the process free the excluded objects: DuckDB reports the rest as its own leaks."""
    if "duckdb" in sys.modules:
        gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a slow test that is skipped: a run of slow tests requires strace and mounts, and must prove each fault."""
    report = yield
    if report.skipped and item.get_closest_marker("slow") is not None and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a slow test was not run: {report.longrepr}"
    return report


def _module(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    """Describe the markers of these tests."""
    config.addinivalue_line(
        "markers", "fault(*ids): proves faults of the matrix by their ids (tests/faults/matrix/matrix.py)"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes golden texts; without it, they are compared."""
    parser.addoption("--write-golden", action="store_true", help="write the golden texts and results again")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real single-node Kafka, shared: use only topics below `topic_family`, and do not stop it."""
    from lockstep.features.localdev.broker import Broker

    with Broker.start(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def harmed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A second broker for tests that kill it or delete its files.

    Each leaves it running, and its own topics unchanged.
    """
    from lockstep.features.localdev.broker import Broker

    with Broker.start(tmp_path_factory.mktemp("harmed_kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of mypy with `--strict --explicit-package-bases`: other options would read the library again."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SparkSession]:
    """The only Spark of this process, started as a run starts it: a process cannot have a second."""
    from pyspark.sql import SparkSession

    from lockstep.settings import SparkSettings
    from lockstep.spark.session import start_context

    settings = SparkSettings(master="local[2,3]")
    session = SparkSession(start_context(settings, "tests", import_roots=(Path(__file__).parents[1],)))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(shared_spark: SparkSession) -> SparkSession:
    """A session for many tiny queries: compiling each would take most of the time. Runs use `shared_spark`."""
    session = shared_spark.newSession()
    for name, value in (
        ("spark.sql.shuffle.partitions", "1"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
        ("spark.sql.adaptive.enabled", "false"),
    ):
        session.conf.set(name, value)
    return session


@pytest.fixture
def topic_family(request: pytest.FixtureRequest) -> str:
    """A unique prefix for topic names, for example `a_late_update_3f2a9c1b`."""
    name = re.sub(r"[^a-z0-9_]", "_", request.node.name.lower())[:60]
    return f"{name}_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def feed(broker: Broker, topic_family: str) -> Feed:
    """A producer to topics of this test."""
    from tests.support.feed import Feed

    return Feed(broker.bootstrap_servers, topic_family)


@pytest.fixture
def runs(feed: Feed, tmp_path: Path) -> LocalRuns:
    """Runs of the adding stream in this process, over the topics of `feed`."""
    from tests.support.adding_stream import adding
    from tests.support.local_runs import LocalRuns

    (tmp_path / "tables").mkdir()  # the root of a new installation
    return LocalRuns(adding(feed.pattern), feed.bootstrap_servers, tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> StreamTable:
    """The tables of an empty stream, written without Kafka."""
    from tests.support.stream_table import StreamTable

    return StreamTable(tmp_path / "tables")
