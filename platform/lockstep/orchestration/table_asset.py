"""The asset of a stream's table: one run that goes on until it is stopped or handed over."""

from collections.abc import Iterator, Sequence

from dagster import AssetExecutionContext, AssetsDefinition, Config, DagsterRun, MaterializeResult, asset
from pydantic import Field

from lockstep.declare.triggers import AvailableNow, Trigger
from lockstep.engine.beside import Abandoned, Stopping, run_beside
from lockstep.engine.hands import AnyStream
from lockstep.engine.loop import Outcome
from lockstep.engine.run import import_roots, run_stream
from lockstep.engine.start import Launch
from lockstep.errors import LockstepError, StreamHalted
from lockstep.orchestration import catalog, endings
from lockstep.orchestration.freshness import table_freshness
from lockstep.orchestration.names import AUTOMATIC_TAG, CAUSE_TAG, WISH_TAG, table_key, topics_key
from lockstep.orchestration.own_run import OwnRun
from lockstep.orchestration.progress import REPORT_SECONDS, RunProgress
from lockstep.orchestration.refusals import refuse_unseen, up_to_date
from lockstep.orchestration.spark import SparkResource
from lockstep.orchestration.wishes import record_stop
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

RETRY_NUMBER_TAG = "dagster/retry_number"
"""Of runs by which Dagster itself retries another."""


class TableConfig(Config):
    """Configuration of one run of the stream."""

    available_now: bool = Field(default=False, description="Read what is there at the start, then end.")
    report_seconds: float = Field(
        default=REPORT_SECONDS, ge=1, description="How often the figures of the run are written down, to be plotted."
    )


def table_asset(stream: AnyStream, settings: Settings, owners: Sequence[str]) -> AssetsDefinition:
    """The asset `<stream>/table`.

    No retry policy: Terminate would become a retry. No pool either: it would hold up a successor
    that asks for the handover; only the epoch in the table's log guards the stream.
    """

    @asset(
        key=table_key(stream),
        deps=[topics_key(stream)],
        group_name=stream.name,
        description=catalog.table_description(stream),
        metadata=catalog.table_metadata(stream, settings.table_root),
        kinds=catalog.KINDS,
        owners=owners,
        freshness_policy=table_freshness(stream.trigger),
        output_required=False,  # a run that is handed over has nothing new to materialize
    )
    def table(
        context: AssetExecutionContext, config: TableConfig, spark: SparkResource
    ) -> Iterator[MaterializeResult[None]]:
        trigger = chosen_trigger(stream, context, available_now=config.available_now)
        if isinstance(trigger, AvailableNow):
            result = up_to_date(stream, settings.table_root, context)
        else:
            refuse_unseen(stream, context.instance, context.run)
            result = None
        result = result or _TableRun(context, stream, settings, config).materialize(spark, trigger)
        if result is not None:
            yield result

    return table


def chosen_trigger(stream: AnyStream, context: AssetExecutionContext, *, available_now: bool) -> Trigger:
    """The stream's own trigger, unless the run is to end: other assets of it wait for that end."""
    alone = context.job_def.asset_layer.selected_asset_keys == {table_key(stream)}
    return stream.trigger if alone and not available_now else AvailableNow()


def launch_of(run: DagsterRun) -> Launch:
    """Who launched a run. A re-execution copies the tags of the run before, but is a person's."""
    by_a_person = run.parent_run_id is not None and RETRY_NUMBER_TAG not in run.tags
    if by_a_person:
        return Launch(cause=f"Dagster run {run.run_id}, a re-execution of {run.parent_run_id}", run_id=run.run_id)
    cause = run.tags.get(CAUSE_TAG, f"Dagster run {run.run_id}")
    wished = run.tags.get(WISH_TAG, "")
    return Launch(
        cause=cause,
        run_id=run.run_id,
        automatic=AUTOMATIC_TAG in run.tags,
        wished_version=int(wished) if wished.isdecimal() else None,
    )


class _TableRun:
    """One run of the engine inside one run of Dagster."""

    def __init__(
        self, context: AssetExecutionContext, stream: AnyStream, settings: Settings, config: TableConfig
    ) -> None:
        self._context, self._stream, self._settings = context, stream, settings
        self._stopping = Stopping()
        self._own_run = OwnRun(context.instance, context.run_id)
        self._progress = RunProgress(context, table_key(stream), config.report_seconds)

    def materialize(self, spark: SparkResource, trigger: Trigger) -> MaterializeResult[None] | None:
        """Run, and end as the engine says; None when the table is not to be materialized.

        Raises:
            DagsterExecutionInterruptedError: Stopped.
            Failure: Halted, or failed.
        """
        try:
            outcome = self._run(spark, trigger)
        except StreamHalted as error:
            self._record_termination()
            raise endings.halted(self._context, error) from error
        except LockstepError as error:
            self._record_termination()
            raise endings.failed(error) from error
        if outcome is Outcome.STOPPED:
            self._record_termination()
        never_ending = not isinstance(trigger, AvailableNow)
        return endings.ended(self._context, self._progress, outcome, self._stopping.reason, never_ending=never_ending)

    def _record_termination(self) -> None:
        """A person who terminates the run wants the stream stopped; a bare signal changes nothing."""
        if self._own_run.terminated_by_a_person():
            folders = StreamFolders(self._stream.name, self._settings.table_root)
            record_stop(folders, self._context.run_id, "terminated in Dagster")

    def _run(self, spark: SparkResource, trigger: Trigger) -> Outcome:
        def work() -> Outcome:
            return run_stream(
                self._stream,
                self._settings,
                spark=lambda: spark.context(self._stream.name, import_roots(self._stream)),
                stop=self._stopping.wanted,
                trigger=trigger,
                report=self._progress.add,
                launch=launch_of(self._context.run),
            )

        patience = self._stream.limits.stop_timeout_seconds
        try:
            return run_beside(work, self._stopping, patience_seconds=patience, tick=self._tick, abandon=spark.cancel)
        except Abandoned:
            self._context.log.warning("the batch did not end within %s s and was abandoned", patience)
            return Outcome.STOPPED
        except StreamHalted:
            raise
        except Exception:  # the outermost edge of a stop: however the batch broke off, nothing of it is visible
            if not self._stopping.wanted.is_set():
                raise
            self._context.log.warning("the batch was broken off by the stop", exc_info=True)
            return Outcome.STOPPED

    def _tick(self) -> None:
        self._progress.tick()
        self._own_run.tick(self._stopping)
