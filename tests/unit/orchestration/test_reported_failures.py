"""A run in Dagster that fails shows problem and next step, as the command line does, for each asset of a platform."""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING, Final

import pytest
from dagster import AssetsDefinition, AssetSelection, DagsterInstance, Definitions, define_asset_job, materialize
from deltalake.exceptions import DeltaError

from assets.order_books import order_books
from lockstep.declare.delivery_target import RowIdentity
from lockstep.delivery import Delivery, RowUndeliverable, Webhook
from lockstep.derived import Derived, Export
from lockstep.errors import TableError
from lockstep.features.delivery.asset import make_delivery_asset
from lockstep.features.delivery.changes import HaltReason
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.quality.asset_check import make_table_check
from lockstep.orchestration.definitions import make_assets
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table import delta_log
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from lockstep.features.delivery.targets import DeclaredDelivery

STARTS: Final = {
    "order_books__table": "lockstep.orchestration.table_asset.run_stream",
    "order_books__compaction": "lockstep.features.compaction.asset.has_table",
    "order_books__housekeeping": "lockstep.features.retention.asset.has_table",
    "order_books__export": "lockstep.features.export.asset.has_table",
    "order_books__current": "lockstep.features.current.asset.has_table",
    "order_books__delivery": "lockstep.features.delivery.asset.run_delivery",
    "summary__table": "lockstep.features.derived.asset.run_derived",
    "checks": "lockstep.features.quality.asset_check.has_table",
}
"""The first call of each asset into the library."""
ERRORS: Final[dict[str, Callable[[], Exception]]] = {
    "full disk": lambda: OSError(errno.ENOSPC, "No space left on device", "/tables"),
    "no memory": lambda: MemoryError("malloc failed"),
    "damaged log": lambda: DeltaError("found gap"),
    "lockstep's own": lambda: TableError("torn", next_step="lockstep repair STREAM"),
}
SHOWN: Final = {
    "full disk": ("No space left on device: /tables", "free space there, then try again"),
    "no memory": ("this process ran out of memory", "try again on a machine with more memory"),
    "damaged log": ("a table cannot be read: found gap", "lockstep repair STREAM checks the table"),
    "lockstep's own": ("torn", "lockstep repair STREAM"),
}
CASES: Final = (*((job, "damaged log") for job in STARTS), *(("order_books__export", error) for error in ERRORS))


def make_delivery(name: str) -> Delivery:
    return Delivery(name=name, target=Webhook(url=f"env:{name.upper()}_URL"))


def read_nothing(frames: object) -> DataFrame:
    raise AssertionError(frames)


STREAM = dataclasses.replace(
    order_books,
    export=Export(),
    current=True,
    deliveries=(make_delivery("alerts"),),
)
SUMMARY = Derived(name="summary", sources=(STREAM,), derive=read_nothing)


def make_definitions(settings: Settings) -> Definitions:
    """Return a job for each asset that a run materializes, and one for the checks."""
    assets = make_assets([STREAM], [SUMMARY], settings, owners=("team:test",))
    checks = make_table_check(STREAM, settings)
    jobs = [define_asset_job("checks", selection=AssetSelection.checks(*checks.check_keys))]
    for asset in assets:
        if isinstance(asset, AssetsDefinition):
            selection = AssetSelection.assets(asset.key).without_checks()
            jobs.append(define_asset_job("__".join(asset.key.path), selection=selection))
    return Definitions(assets=assets, asset_checks=[checks], jobs=jobs, resources={"spark": SparkResource()})


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with DagsterInstance.local_temp(str(tmp_path / "dagster")) as made:
        yield made


def fail(definitions: Definitions, job: str, instance: DagsterInstance) -> tuple[str, object]:
    """Run a job that fails; return what Dagster shows: the description and the metadata `next`."""
    config = {"ops": {job: {"config": {"available_now": True}}}} if job == "order_books__table" else {}
    run = definitions.resolve_job_def(job)
    done = run.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    (event,) = done.get_step_failure_events()
    shown = event.step_failure_data.user_failure_data
    assert shown is not None, event.step_failure_data.error
    return shown.description or "", shown.metadata["next"].value


def test_each_asset_is_here(tmp_path: Path) -> None:
    jobs = make_definitions(Settings(table_root=tmp_path)).jobs or ()
    assert {each.name for each in jobs} == STARTS.keys()


@pytest.mark.parametrize(("job", "error"), CASES)
def test_a_failed_run_shows_problem_and_next_step(
    tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, job: str, error: str
) -> None:
    def start(*_: object, **__: object) -> None:
        made = ERRORS[error]()
        raise made

    monkeypatch.setattr(STARTS[job], start)
    description, next_step = fail(make_definitions(Settings(table_root=tmp_path)), job, instance)
    known = "STREAM" if job == "summary__table" else "order_books"  # of several sources
    problem, expected = SHOWN[error]
    assert description.startswith(f"{problem}\n  next: ")
    assert str(next_step).startswith(expected.replace("STREAM", known))


def test_a_defect_of_a_delivery_keeps_no_other_from_its_turn(
    tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[str]()

    def start(declared: DeclaredDelivery, *_: object, **__: object) -> None:
        turns.append(declared.delivery.name)
        raise ZeroDivisionError(declared.delivery.name)

    monkeypatch.setattr(STARTS["order_books__delivery"], start)
    stream = dataclasses.replace(STREAM, deliveries=(make_delivery("alerts"), make_delivery("events")))
    made = make_delivery_asset(stream, Settings(table_root=tmp_path), ())
    with pytest.raises(ZeroDivisionError, match="alerts"):
        materialize([made], instance=instance)
    assert sorted(turns) == ["alerts", "events"]


def test_a_row_that_halts_a_delivery_is_shown_without_its_values(
    tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster stores description and causes, which an erasure does not reach."""
    row = RowIdentity("id", 0, 7, 1)

    def start(*_: object, **__: object) -> None:
        poison = RowUndeliverable(row, "KeyError: 'canary-7f3a'", next_step="correct the function")
        raise DeliveryHalted("alerts", HaltReason.ROW, poison.problem, next_step=poison.next_step, row=row) from poison

    monkeypatch.setattr(STARTS["order_books__delivery"], start)
    definitions = make_definitions(Settings(table_root=tmp_path))
    done = definitions.resolve_job_def("order_books__delivery").execute_in_process(
        instance=instance, raise_on_error=False
    )
    stored = "".join(repr(entry.event_log_entry) for entry in instance.get_records_for_run(done.run_id).records)
    assert "row id/0/7/1; lockstep deliver alerts shows the problem" in stored
    assert "canary-7f3a" not in stored


def test_a_gap_in_the_log_is_named_with_the_command_that_repairs_it(tmp_path: Path, instance: DagsterInstance) -> None:
    made = ProtocolRun(folders_in(tmp_path / "tables", STREAM.name))
    made.claim()
    for _ in range(4):
        made.batch()
    delta_log.make_entry_path(made.folders.table, 3).unlink()
    definitions = make_definitions(Settings(table_root=made.folders.root))
    description, next_step = fail(definitions, "order_books__compaction", instance)
    assert "found gap" in description
    assert next_step == "lockstep repair order_books checks the table"
    description, next_step = fail(definitions, "order_books__housekeeping", instance)
    assert "found gap" in description  # with the problems of all its steps
    assert next_step == "fix the cause, then: lockstep housekeeping order_books"
