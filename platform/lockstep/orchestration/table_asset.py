"""The table asset and its catalog metadata."""

import inspect
import math
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    Config,
    DagsterRun,
    Failure,
    FreshnessPolicy,
    JobDefinition,
    MaterializeResult,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
    asset,
)
from pydantic import Field

from lockstep.addresses import to_uri, to_url
from lockstep.declare.options import AvailableNow, Trigger, find_longest_wait
from lockstep.declare.stream import AnyStream, format_source
from lockstep.engine.driver.context import RunReports
from lockstep.engine.driver.import_roots import find_import_roots
from lockstep.engine.driver.loop import RunOutcome
from lockstep.engine.driver.main_thread import StopSignal, StopTimeout, run_off_main_thread
from lockstep.engine.driver.run import run_stream
from lockstep.engine.driver.startup import Launch
from lockstep.errors import SettingsError, TableError
from lockstep.integrity.resume_options import StreamHalted
from lockstep.model.table_schema import make_table_schema
from lockstep.operations.stream_table import try_read_head
from lockstep.orchestration import run_lifecycle
from lockstep.orchestration.dagster_types import RawMetadataValue
from lockstep.orchestration.names import (
    AUTOMATIC_TAG,
    CAUSE_TAG,
    DESIRED_VERSION_TAG,
    EPOCH_TAG,
    NONE,
    OUTCOME_TAG,
    RETRY_NUMBER_TAG,
    TOPICS_TAG,
    make_table_key,
    make_topics_key,
    name_stream_job,
)
from lockstep.orchestration.request_user import find_user
from lockstep.orchestration.run_lifecycle import (
    REPORT_SECONDS,
    RunProgress,
    RunStatusPoller,
    record_stop,
    report_up_to_date,
    require_persistent_instance,
)
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import Settings
from lockstep.table.layout import StreamFolders

KINDS = {"kafka", "spark", "deltalake"}
"""Dagster shows an icon for each."""

MEANING = {
    "_topic": "Kafka topic of the source message",
    "_topic_id": "Kafka's id of the topic; a re-created topic has another one",
    "_partition": "Partition of the source message",
    "_offset": "Offset of the source message",
    "_emit_offset": "Offset that was being processed when the row was emitted",
    "_row": "Number of the row among those of one emit offset",
    "_session": "Session: the unit of order inside a partition",
    "_sequence": "The producer's sequence number of the message inside its session",
    "_event_time": "Event time of the message",
    "_cause": "Hook of the transform that emitted the row: update, snapshot, timer, end or late",
    "commit_hour": "Hour of the commit, UTC; the partition column",
}
"""Descriptions of the columns that lockstep adds."""


def make_table_metadata(stream: AnyStream, root: Path) -> dict[str, RawMetadataValue]:
    """Metadata of the table's asset."""
    folders = StreamFolders(stream.name, root)
    lookups = {each.name: to_uri(each.find_table(root)) for each in stream.lookups}
    return {
        "dagster/column_schema": make_column_schema(stream.types.row),
        "dagster/uri": to_url(folders.table),  # must be plain text, or the catalog shows none
        "ledger": MetadataValue.path(to_uri(folders.ledger)),
        "topics": stream.topics.pattern,
        "integrity": describe_integrity(stream),
        "promise": stream.integrity.guarantee(),
        "trigger": format_source(stream.trigger, with_defaults=True),
        **({"lookups": lookups} if lookups else {}),
    }


def make_table_description(stream: AnyStream) -> str:
    """The description of the declaration, then the behaviour of a run."""
    return (
        f"{stream.description}\n\n"
        f"Reads every topic that matches `{stream.topics.pattern}` in order, exactly once, under "
        f"`{describe_integrity(stream)}`: {stream.integrity.guarantee()}.\n\n"
        "**Metadata, Plots** and **Events** show the metrics of the run, one point a minute. The table under "
        "**Metadata** shows the newest materialization: the version that the last check read, or the end of a bounded "
        "run.\n\n"
        "**Materialize** reads the messages that are there, runs the checks and ends. While a continuous run writes, "
        f"it only runs the checks. To run the stream continuously: the job `{name_stream_job(stream)}`, or "
        f"`lockstep start {stream.name}`; `lockstep stop {stream.name}` ends it."
    ).strip()


def describe_integrity(stream: AnyStream) -> str:
    """The integrity class as declared."""
    return format_source(stream.integrity)


def make_column_schema(row_type: type[msgspec.Struct]) -> TableSchema:
    """All columns of the table, the provenance columns too."""
    meaning = MEANING | read_field_descriptions(row_type)
    return TableSchema(
        columns=[
            TableColumn(
                field.name,
                str(field.type),
                description=meaning.get(field.name),
                constraints=TableColumnConstraints(nullable=field.nullable),
            )
            for field in make_table_schema(row_type)
        ]
    )


def read_field_descriptions(row_type: type) -> dict[str, str]:
    """Descriptions of the fields of a row type, or of any class.

    `Annotated[..., msgspec.Meta(description=...)]` counts first, then the `Attributes:` of the class's docstring.
    """
    return (
        _documented(inspect.getdoc(row_type) or "")
        | {
            name: meta.description
            for name, hint in get_type_hints(row_type, include_extras=True).items()
            for annotated in (hint, *get_args(hint))  # by itself, or in `... | None`
            if get_origin(annotated) is Annotated
            for meta in get_args(annotated)[1:]
            if isinstance(meta, msgspec.Meta) and meta.description
        }
    )


_ATTRIBUTE = re.compile(r"^ {4}(?P<name>\w+)(?: \([^)]*\))?: (?P<text>.+(?:\n {5,}\S.*)*)", re.MULTILINE)


def _documented(docstring: str) -> dict[str, str]:
    """The attributes of a docstring in Google's style; further indented lines continue the previous line."""
    _, _, attributes = docstring.partition("\nAttributes:\n")
    section = re.split(r"^\S", attributes, maxsplit=1, flags=re.MULTILINE)[0]
    return {found["name"]: " ".join(found["text"].split()) for found in _ATTRIBUTE.finditer(section)}


LEDGER_WARN = timedelta(minutes=15)
LEDGER_FAIL = timedelta(minutes=30)
"""The topics sensor observes the ledger every five minutes: two observations may be late or without Kafka."""
TABLE_WARN = timedelta(hours=2, minutes=10)
TABLE_FAIL = timedelta(hours=4)
"""The table is checked each hour: one check may fail, or wait behind others."""


WINDOW_MIN = timedelta(minutes=1)
"""Dagster refuses a shorter window."""


def make_ledger_freshness(stream: AnyStream) -> FreshnessPolicy | None:
    """Freshness of the ledger: a recent batch, or no lag."""
    return _windows(stream, LEDGER_WARN, LEDGER_FAIL)


def make_table_freshness(stream: AnyStream) -> FreshnessPolicy | None:
    """Freshness of the table: a version of it was checked recently, and the ledger was fresh then."""
    return _windows(stream, TABLE_WARN, TABLE_FAIL)


def is_ledger_fresh(trigger: Trigger, materialized_at: float, now: float) -> bool:
    """Whether the ledger was observed to be up to date lately; times in seconds since 1970 (UTC)."""
    return now - materialized_at < (LEDGER_WARN + find_longest_wait(trigger)).total_seconds()


def _windows(stream: AnyStream, warn: timedelta, fail: timedelta) -> FreshnessPolicy | None:
    """The policy of an asset, at least as long as the objective of the stream.

    A shorter objective does not shorten it, as the asset is not observed more often: the check `health` is. A stream
    without never-ending runs is as fresh as its last run, and has a policy only with an objective.
    """
    objective = stream.objectives.freshness
    if isinstance(stream.trigger, AvailableNow):
        if objective is None:
            return None
        return FreshnessPolicy.time_window(fail_window=max(objective, WINDOW_MIN))
    longest = find_longest_wait(stream.trigger)
    wanted = objective or timedelta()
    return FreshnessPolicy.time_window(
        fail_window=max(fail + longest, wanted), warn_window=max(warn + longest, wanted / 2)
    )


class TableConfig(Config):
    """Configuration of one run of the stream."""

    available_now: bool | None = Field(
        default=None,
        description="Read what is available at the start, then end. By default a run with checks or with other assets "
        "does, as of Materialize; a run of the table alone, as of the stream's job, goes on until it is stopped.",
    )
    report_seconds: float = Field(
        default=REPORT_SECONDS,
        description="Seconds between the recorded metrics of the run, to be plotted; 1 or more.",
    )


REPORT_SECONDS_MIN = 1.0
"""Each report is an event in Dagster's storage."""


def refuse_wrong_config(context: AssetExecutionContext, config: TableConfig) -> None:
    """Refuse values that the launchpad takes: Dagster's run configuration knows types, and no bounds.

    Raises:
        Failure: Names the field, the value and the possible values; the run is not retried.
    """
    seconds = config.report_seconds
    if not REPORT_SECONDS_MIN <= seconds < math.inf:
        problem = f"run configuration: report_seconds = {seconds:g} is not a finite number of seconds from 1 on"
        step = f"launch the run again with 1 or more, or without report_seconds: the default is {REPORT_SECONDS:g}"
        raise run_lifecycle.report_wrong_config(context, SettingsError(problem, next_step=step))


def make_table_asset(
    stream: AnyStream, settings: Settings, owners: Sequence[str], lookups: Sequence[AssetKey] = ()
) -> AssetsDefinition:
    """The asset `<stream>/table`.

    No retry policy: Terminate would become a retry. No pool either: it would hold up a successor
    that asks for the handover; only the epoch in the table's log guards the stream.
    """
    root = settings.table_root

    @asset(
        key=make_table_key(stream),
        deps=[make_topics_key(stream), *lookups],
        group_name=stream.name,
        description=make_table_description(stream),
        metadata=make_table_metadata(stream, root),
        kinds=KINDS,
        owners=owners,
        freshness_policy=make_table_freshness(stream),
        output_required=False,  # a run that is handed over materializes nothing
    )
    def table(
        context: AssetExecutionContext, config: TableConfig, spark: SparkResource
    ) -> Iterator[MaterializeResult[None]]:
        refuse_wrong_config(context, config)
        if tags := find_copied_tags(context.run) | find_request_tag(context.run, StreamFolders(stream.name, root)):
            context.instance.add_run_tags(context.run.run_id, tags)
        trigger = choose_effective_trigger(stream, context.job_def, available_now=config.available_now)
        if isinstance(trigger, AvailableNow):
            with run_lifecycle.report_failures(stream.name):
                result = report_up_to_date(stream, root, context)
        else:
            require_persistent_instance(stream.name, context.instance, context.run)
            result = None
        result = result or _TableRun(context, stream, settings, config).materialize(spark, trigger)
        if result is not None:
            yield result

    return table


def choose_effective_trigger(stream: AnyStream, job: JobDefinition, *, available_now: bool | None) -> Trigger:
    """The stream's own trigger, unless the run is to end: other assets and checks wait for that end.

    Args:
        stream: The stream.
        job: The job of the run, with its selection: "Materialize" selects the table with its checks.
        available_now: As configured; a person may ask for a never-ending run whose checks wait.
    """
    layer = job.asset_layer
    if layer.selected_asset_keys != {make_table_key(stream)}:
        return AvailableNow()
    ends = bool(layer.asset_graph.asset_check_keys) if available_now is None else available_now
    if ends:
        return AvailableNow()
    return stream.trigger


def find_launch(run: DagsterRun) -> Launch:
    """Who launched a run. A re-execution copies the tags of the original run, but a person launches it.

    No person launches a retry by Dagster. It carries the version at which a person requested its original, so that a
    stop since then prevails; without one it is automatic, and writes only while the desired state allows it.
    """
    user = find_user(run)
    by = f", by {user}" if user else ""
    if _is_reexecuted_by_a_person(run):
        return Launch(cause=f"Dagster run {run.run_id}, a re-execution of {run.parent_run_id}{by}", run_id=run.run_id)
    is_retry = run.parent_run_id is not None
    requested = run.tags.get(DESIRED_VERSION_TAG, "")
    is_noted = requested.isdecimal()
    of_parent = f", a retry of {run.parent_run_id}" if is_retry else ""
    return Launch(
        cause=run.tags.get(CAUSE_TAG, f"Dagster run {run.run_id}{of_parent}{by}"),
        run_id=run.run_id,
        automatic=run.tags.get(AUTOMATIC_TAG, NONE) != NONE or (is_retry and not is_noted),
        desired_version=int(requested) if is_noted else None,
    )


def find_request_tag(run: DagsterRun, folders: StreamFolders) -> dict[str, str]:
    """The version at which a person requested the run, as a tag for its retries; empty for all other runs."""
    launch = find_launch(run)
    if launch.automatic or launch.desired_version is not None:
        return {}
    try:
        head = try_read_head(folders)
    except (TableError, OSError):
        return {}  # the run fails with it
    # So a stop after the request prevails over its retries.
    version = 0 if head is None else head.desired_version
    return {DESIRED_VERSION_TAG: str(version)}


def find_copied_tags(run: DagsterRun) -> dict[str, str]:
    """New values of the tags that a re-execution has copied although they are true of its original alone.

    A retry by Dagster itself keeps the cause, and the version at which its original was requested.
    """
    if run.parent_run_id is None:
        return {}
    copied = {OUTCOME_TAG: NONE}
    if _is_reexecuted_by_a_person(run):
        copied |= dict.fromkeys((AUTOMATIC_TAG, EPOCH_TAG, DESIRED_VERSION_TAG, TOPICS_TAG), NONE)
        copied[CAUSE_TAG] = f"re-execution of {run.parent_run_id[:8]}"
    return {tag: value for tag, value in copied.items() if tag in run.tags}


def _is_reexecuted_by_a_person(run: DagsterRun) -> bool:
    return run.parent_run_id is not None and RETRY_NUMBER_TAG not in run.tags


class _TableRun:
    """One run of the engine inside one run of Dagster."""

    def __init__(
        self, context: AssetExecutionContext, stream: AnyStream, settings: Settings, config: TableConfig
    ) -> None:
        self._context = context
        self._stream = stream
        self._settings = settings
        self._stopping = StopSignal()
        self._own_run = RunStatusPoller(context.instance, context.run.run_id)
        self._progress = RunProgress(context, make_table_key(stream), config.report_seconds)

    def materialize(self, spark: SparkResource, trigger: Trigger) -> MaterializeResult[None] | None:
        """Run the engine and end the Dagster run accordingly; None when the table is not to be materialized.

        Raises:
            DagsterExecutionInterruptedError: Stopped.
            Failure: Halted, or failed.
        """
        try:
            with run_lifecycle.report_failures(self._stream.name):
                outcome = self._run_or_report_halt(spark, trigger)
        except Failure:
            self._record_termination()
            raise
        if outcome is RunOutcome.STOPPED:
            self._record_termination()
        never_ending = not isinstance(trigger, AvailableNow)
        return run_lifecycle.end_run(
            self._context, self._progress, outcome, self._stopping.reason, never_ending=never_ending
        )

    def _run_or_report_halt(self, spark: SparkResource, trigger: Trigger) -> RunOutcome:
        try:
            return self._run(spark, trigger)
        except StreamHalted as error:
            raise run_lifecycle.report_halt(self._context, error) from None  # a cause would be stored with its text

    def _record_termination(self) -> None:
        """Commit a stop when a person terminated the run; a signal alone changes nothing."""
        if self._own_run.was_terminated_by_user():
            folders = StreamFolders(self._stream.name, self._settings.table_root)
            instance = self._context.instance
            run_id = self._context.run.run_id
            with run_lifecycle.report_failures(self._stream.name):
                record_stop(folders, run_id, run_lifecycle.describe_termination(instance, run_id))

    def _run(self, spark: SparkResource, trigger: Trigger) -> RunOutcome:
        def work() -> RunOutcome:
            return run_stream(
                self._stream,
                self._settings,
                spark=lambda: spark.context(self._stream.name, find_import_roots(self._stream)),
                stop=self._stopping.wanted,
                trigger=trigger,
                reports=RunReports(self._progress.add),
                launch=launch,
            )

        launch = find_launch(self._context.run)
        patience = self._stream.limits.stop_timeout_seconds
        try:
            return run_off_main_thread(
                work,
                self._stopping,
                patience_seconds=patience,
                tick=self._tick,
                abandon=lambda: spark.cancel(launch.run_id),
            )
        except StopTimeout:
            self._context.log.warning("the batch did not end within %s s and was abandoned", patience)
            return RunOutcome.STOPPED
        except Exception as error:  # the outermost edge of a stop: however the batch ended, nothing of it is visible
            if not self._stopping.explains(error):
                raise
            self._context.log.warning("the batch was broken off by the stop", exc_info=True)
            return RunOutcome.STOPPED

    def _tick(self) -> None:
        self._progress.tick()
        self._own_run.tick(self._stopping)
