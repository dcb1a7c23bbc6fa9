"""The asset of a stream's deliveries, for streams that declare some."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from dagster import AssetExecutionContext, AssetsDefinition, MaterializeResult, asset

from lockstep.declare.delivery_target import TargetInterrupted
from lockstep.declare.stream import AnyStream
from lockstep.features.delivery.changes import TargetKind, find_kind
from lockstep.features.delivery.deliver import DeliveryRun, list_deliveries, run_delivery
from lockstep.features.delivery.position import DeliveryHalted
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.foreign_errors import describe_error
from lockstep.orchestration.dagster_types import RawMetadataValue
from lockstep.orchestration.names import make_part_key, make_table_key
from lockstep.orchestration.run_lifecycle import report_failures
from lockstep.settings import Settings
from lockstep.time_limit import describe_silence, start_call

RUN_SECONDS = 45.0
"""After this time a run ends behind the write in progress: the next one, a minute later, continues."""
END_SECONDS = 60.0
"""Time for the write in progress. A target that takes longer, or never answers, would hold up the other deliveries."""

KINDS = {
    TargetKind.TOPIC: "kafka",
    TargetKind.COMPACTED: "kafka",
    TargetKind.APPENDED: "postgres",
    TargetKind.KEYED: "postgres",
    TargetKind.WEBHOOK: "webhook",
    TargetKind.OWN: "delivery",
}
"""Kinds of the asset in Dagster."""


def make_delivery_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/delivery`: runs while the stream writes, without Spark."""
    declared = tuple(list_deliveries([stream]).values())
    names = ", ".join(f"`{each.delivery.name}` to {each.delivery.target.address}" for each in declared)

    @asset(
        key=make_part_key(stream, "delivery"),
        deps=[make_table_key(stream)],
        group_name=stream.name,
        description=(
            f"Committed rows of {stream.name} outside of its table: {names}. A run delivers the batches "
            "that are new, all deliveries in parallel, and ends; `lockstep deliver NAME --follow` delivers each batch "
            "within a second."
        ),
        kinds={KINDS[find_kind(each.delivery)] for each in declared},
        owners=owners,
    )
    def delivery(context: AssetExecutionContext) -> MaterializeResult[None]:
        done = list[DeliveryRun]()
        failed = list[Exception]()
        for each, run in zip(declared, _run_all(declared, settings), strict=True):
            try:
                done.append(_get_result(each, run))
            except Exception as error:  # of the others, too
                shown = error.without_values() if isinstance(error, DeliveryHalted) else error
                text, trace = describe_error(shown, stream.name)
                context.log.warning("%s: %s", each.delivery.name, text, exc_info=trace)
                failed.append(shown)
        with report_failures(stream.name):
            if failed:
                raise failed[0]
        return MaterializeResult(metadata=_describe(done))

    return delivery


def _run_all(declared: Iterable[DeclaredDelivery], settings: Settings) -> list[Future[DeliveryRun]]:
    """Run deliveries in parallel, each in its own thread: none waits for the target of another."""
    stop = threading.Event()
    runs = [start_call(partial(run_delivery, each, settings, stop=stop)) for each in declared]
    try:
        wait(runs, RUN_SECONDS)
    finally:
        stop.set()
    wait(runs, END_SECONDS)
    return runs


def _get_result(declared: DeclaredDelivery, run: Future[DeliveryRun]) -> DeliveryRun:
    """The result of a run. Raises its error, and TargetInterrupted if it has not ended."""
    if run.done():
        return run.result()
    target = declared.delivery.target.address
    raise TargetInterrupted(declared.delivery.name, describe_silence(target, END_SECONDS, "the write in progress"))


def _describe(done: Sequence[DeliveryRun]) -> dict[str, RawMetadataValue]:
    shown = dict[str, RawMetadataValue]()
    for each in done:
        shown |= {f"{each.name}_rows": each.rows, f"{each.name}_batch": each.batch}
        if each.is_stopped:
            shown[f"{each.name}_stopped"] = True
    return shown
