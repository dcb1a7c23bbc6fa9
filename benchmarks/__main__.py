"""Runs the benchmarks: `python -m benchmarks --help`."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar

import typer
from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks import goals, record, report
from benchmarks.amplification import OpenHours, measure_amplification
from benchmarks.compaction import SmallFiles, measure_compaction
from benchmarks.driver import measure_driver, plan_driver
from benchmarks.feed import FeedIncompleteError, feed, forget_positions
from benchmarks.growth import Growth, OtherSettingsError, measure_growth
from benchmarks.host import HostedStreams, measure_host
from benchmarks.large_state import LargeState, measure_large_state
from benchmarks.latency import Live, measure_latency
from benchmarks.live import LiveRunError
from benchmarks.live_shape import FOLDS, ROUNDS_MAX, SHAPES, LiveShape, measure_live_shape
from benchmarks.measure import CommandFailedError
from benchmarks.pairs import EndedEarlyError, Pairs, measure_pairs
from benchmarks.partitions import Partitions, measure_partitions
from benchmarks.peers.measure import measure_peers
from benchmarks.peers.systems import PEERS
from benchmarks.plots import draw
from benchmarks.quality import Checks, measure_quality
from benchmarks.restart import measure_restart, plan_restarts
from benchmarks.rounds import Plan, WrongRowsError, measure_all
from benchmarks.startup import Startup, measure_startup
from benchmarks.strictness import Turns, measure_strictness
from benchmarks.sweep import BY_SESSIONS, BY_TOPICS, Sweep, measure_sweep
from benchmarks.systems import LOCKSTEP, REFERENCE, SYSTEMS
from benchmarks.workload import SIZES, SMOKE, Size
from lockstep.errors import LockstepError
from lockstep.features.localdev.broker import Broker

T = TypeVar("T")

Keep = Annotated[Path | None, typer.Option(help="Keep the broker's data here for the next run.")]
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
Repeat = Annotated[int, typer.Option(help="Runs of each system, taken in turns.", min=1)]
Only = Annotated[str, typer.Option(help="Counts to measure, comma-separated, the base among them; all by default.")]
BatchMessages = Annotated[int, typer.Option(help="Messages of a batch.", min=1)]

_EXPECTED_ERRORS = (
    LockstepError,
    FeedIncompleteError,
    CommandFailedError,
    WrongRowsError,
    LiveRunError,
    EndedEarlyError,
    KafkaException,
)
app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command()
def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "main",
    repeat: Repeat = 3,
    systems: Annotated[
        str, typer.Option(help=f"Of {', '.join(SYSTEMS)}; ratios are to the first.")
    ] = f"{REFERENCE.name},{LOCKSTEP.name}",
    batch_messages: BatchMessages = 200_000,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """Fold the same messages by each system, prove the rows equal, and print the cost."""
    chosen = tuple(_known(SYSTEMS, name) for name in systems.split(","))
    plan = Plan(_known(SIZES, size), SMOKE, chosen, repeat, batch_messages)
    console = Console()
    with _prepared(keep, (plan.smoke, plan.size), console) as (broker, output):
        found = measure_all(plan, broker.bootstrap_servers, output, console)
    report.show(found, console)
    console.print(f"saved: {report.save(found, results)}")
    draw(goals.record_of(found), results)


@app.command()
def pairs(
    count: Annotated[int, typer.Option(help="Pairs that count, after 3 whose figures are apart.", min=6)] = 20,
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "main",
    batch_messages: BatchMessages = 200_000,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """Pairs of lockstep and as many bare loops as cores, at the same moment: the ratio and its spread."""
    plan = Pairs(_known(SIZES, size), batch_messages, pairs=count)
    console = Console()
    with _prepared(keep, (plan.size,), console) as (broker, output):
        found = measure_pairs(plan, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def peers(
    only: Annotated[
        str, typer.Option(help=f"Of {', '.join(PEERS)}; what cannot be built here is left out.")
    ] = ",".join(PEERS),
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}, larger than {SMOKE.name}.")] = "peers",
    repeat: Repeat = 2,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """The same messages by other systems, each with its rows proven equal: CPU time, rate, memory, start-up."""
    names = [_known(PEERS, name).system.name for name in only.split(",")]
    asked = _known(SIZES, size)
    if asked == SMOKE:
        raise typer.BadParameter(f"{SMOKE.name} measures start-up; name a larger size")
    console = Console()
    with _prepared(keep, (SMOKE, asked), console) as (broker, output):
        found = measure_peers(
            names, asked, repeat, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console
        )
    _keep_record(found, results, console)


@app.command()
def topics(
    only: Only = "",
    repeat: Repeat = 1,
    batch_messages: BatchMessages = 200_000,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """The same messages over 1 to 1,000 topics."""
    _sweep(BY_TOPICS.only(only), repeat, batch_messages, keep, results)


@app.command()
def sessions(
    only: Only = "",
    repeat: Repeat = 1,
    batch_messages: BatchMessages = 200_000,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """The same number of messages over 1,000 to 1,000,000 sessions."""
    _sweep(BY_SESSIONS.only(only), repeat, batch_messages, keep, results)


@app.command()
def latency(
    seconds: Annotated[int, typer.Option(help="Measured time of each run.", min=1)] = 60,
    rounds: Annotated[int, typer.Option(help="Turns of the bare loop and lockstep.", min=1)] = 2,
    triggers: Annotated[str, typer.Option(help="Seconds from batch to batch, comma-separated.")] = "0.25,1",
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """From event to visible in Delta at 10,000 messages/s, and the load, in turns with a bare loop that commits too."""
    console = Console()
    asked = Live(seconds=seconds, rounds=rounds, triggers_seconds=[float(each) for each in triggers.split(",")])
    with _prepared(keep, (), console) as (broker, output):
        found = measure_latency(asked, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def restart(
    handovers: Annotated[int, typer.Option(help="Planned handovers, one after another.", min=1)] = 5,
    rate: Annotated[int, typer.Option(help="Messages a second.", min=1)] = 1_000,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """Start again after a kill -9, with 1 M rows of state; planned handovers; the load of an idle stream."""
    console = Console()
    asked = plan_restarts(handovers, rate)
    with _prepared(keep, (), console) as (broker, output):
        found = measure_restart(asked, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def state(
    gigabytes: Annotated[float, typer.Option(help="State, as the local copy holds it.")] = 10.0,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """Much state: memory, disk, and restarts with and without the local copy; 10 GB need 45 GB of disk."""
    console, asked = Console(), LargeState(gigabytes)
    with _prepared(keep, (asked.size,), console) as (broker, output):
        forget_positions(broker.bootstrap_servers)
        found = measure_large_state(asked, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def startup(
    repeat: Annotated[int, typer.Option(help="Starts of each kind; the median counts.", min=1)] = 5,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """CPU time from a start to the first commit, and of `dagster asset materialize` without messages."""
    console = Console()
    with _prepared(keep, (), console) as (broker, output):
        found = measure_startup(
            Startup(repeat), bootstrap_servers=broker.bootstrap_servers, folder=output, console=console
        )
    _keep_record(found, results, console)


@app.command()
def host(
    streams: Annotated[int, typer.Option(help="Streams of one topic each.", min=1)] = 50,
    rate: Annotated[int, typer.Option(help="Messages a second of each stream.", min=1)] = 200,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.", min=1.0)] = 60.0,
    idle_minutes: Annotated[float, typer.Option(help="Minutes without messages, if longer.", min=0.0)] = 0.0,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """Memory and CPU time of many streams in one process, without and with messages."""
    console = Console()
    hosted = HostedStreams(streams, rate, seconds, idle_minutes * 60)
    with _prepared(keep, (), console) as (broker, output):
        found = measure_host(hosted, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def driver(
    topics: Annotated[int, typer.Option(help="Topics of one partition each.", min=1)] = 1_000,
    trigger: Annotated[float, typer.Option(help="Seconds from batch to batch.", min=0.05)] = 1.0,
    keep: Keep = None,
    results: Results = record.RESULTS,
) -> None:
    """CPU time of the driver for a batch over very many topics of a real broker."""
    console = Console()
    with _prepared(keep, (), console) as (broker, output):
        asked = plan_driver(topics, trigger)
        found = measure_driver(asked, bootstrap_servers=broker.bootstrap_servers, folder=output, console=console)
    _keep_record(found, results, console)


@app.command()
def growth(
    days: Annotated[int, typer.Option(help="Simulated days.", min=2)] = 30,
    seconds: Annotated[float, typer.Option(help="Simulated seconds from batch to batch.")] = 5.0,
    partitions: Annotated[int, typer.Option(help="Partitions that every batch reads.", min=1)] = 2,
    keep: Annotated[Path | None, typer.Option(help="Keep the table here; a later run continues it.")] = None,
    results: Results = record.RESULTS,
) -> None:
    """Disk space and cost of a month of batches: the real committer under a moved clock; hours at 5 s, day by day."""
    console = Console()
    try:
        with _folder(keep) as folder:
            for found in measure_growth(Growth(days, seconds, partitions), folder=folder, console=console):
                record.save(found, results)
    except OtherSettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from None
    _keep_record(found, results, console)


@app.command()
def compaction(
    files: Annotated[int, typer.Option(help="Small files of the hour.", min=2)] = 2_000,
    results: Results = record.RESULTS,
) -> None:
    """Hours of 50 kB files, compacted by lockstep, delta-rs and Spark on copies; a Spark scan before and after."""
    console = Console()
    with _folder(None) as folder:
        found = measure_compaction(SmallFiles(files), folder=folder, console=console)
    _keep_record(found, results, console)


@app.command()
def amplification(results: Results = record.RESULTS) -> None:
    """Two hours of a file a second, compacted as the schedules do: what is written for each byte of the batches."""
    console = Console()
    with _folder(None) as folder:
        found = measure_amplification(OpenHours(), folder=folder, console=console)
    _keep_record(found, results, console)


@app.command()
def partitions(
    count: Annotated[int, typer.Option(help="Partitions of the stream.", min=200)] = Partitions().partitions,
    results: Results = record.RESULTS,
) -> None:
    """CPU time of the driver for a partition that changed and for one that did not, in a simulated cluster."""
    console = Console()
    with _folder(None) as folder:
        found = measure_partitions(Partitions(partitions=count), folder=folder, console=console)
    _keep_record(found, results, console)


@app.command("live-shape")
def live_shape(
    only: Annotated[str, typer.Option(help=f"Of {', '.join(SHAPES)}.")] = ",".join(SHAPES),
    folds: Annotated[str, typer.Option(help=f"Of {'; '.join(FOLDS)}; semicolons between them.")] = ";".join(FOLDS),
    rounds: Annotated[int, typer.Option(help="Rounds that count.", min=1, max=ROUNDS_MAX)] = LiveShape().rounds,
    results: Results = record.RESULTS,
) -> None:
    """Small batches, many and large sessions, in memory: the cost of a message and the state files, for each fold."""
    asked = LiveShape(
        shapes=[_known(SHAPES, name) for name in only.split(",")],
        folds=[_known(dict(zip(FOLDS, FOLDS, strict=True)), name.strip()) for name in folds.split(";")],
        rounds=rounds,
    )
    console = Console()
    with _folder(None) as folder:
        found = measure_live_shape(asked, folder=folder, console=console)
    _keep_record(found, results, console)


@app.command()
def strictness(
    pairs: Annotated[int, typer.Option(help="Pairs that count.", min=2)] = Turns().pairs,
    results: Results = record.RESULTS,
) -> None:
    """The same batches folded in memory, as `Strict` and without any check, in turns: the share of the checks."""
    console = Console()
    with _folder(None) as folder:
        found = measure_strictness(Turns(pairs=pairs), folder=folder, console=console)
    _keep_record(found, results, console)


@app.command()
def quality(
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=200_000)] = 1_000_000,
    results: Results = record.RESULTS,
) -> None:
    """Checks of a table and of what was added to it, by lockstep and by the stock suite of Great Expectations."""
    from pyspark.sql import SparkSession

    from lockstep.settings import SparkSettings
    from lockstep.spark.session import start_context

    console = Console()
    spark = SparkSession(start_context(SparkSettings(master="local[2]"), "quality benchmark"))
    with _folder(None) as folder:
        found = measure_quality(Checks(rows), spark, folder=folder, console=console)
    spark.stop()
    _keep_record(found, results, console)


@app.command("feed")
def feed_all(keep: Annotated[Path, typer.Option(help="Folder of the broker's data.")]) -> None:
    """Fill the topics of the main comparison and of both sweeps, so that later runs with --keep need not."""
    console = Console()
    with _prepared(keep, tuple(SIZES.values()), console):
        console.print("done")


@app.command()
def plots(results: Results = record.RESULTS, document: Path = goals.DOCUMENT) -> None:
    """Draw all kept results again, and renew the summary in docs/benchmarks.md and the page of all figures."""
    for each in goals.newest(results):
        draw(each, results)
    goals.renew_pages(document, results)


def _sweep(sweep: Sweep, repeat: int, batch_messages: int, keep: Path | None, results: Path) -> None:
    console = Console()
    with _prepared(keep, (sweep.smoke, *sweep.sizes), console) as (broker, output):
        found = measure_sweep(
            sweep,
            repeat=repeat,
            batch_messages=batch_messages,
            bootstrap_servers=broker.bootstrap_servers,
            folder=output,
            console=console,
        )
    _keep_record(found, results, console)


def _keep_record(found: record.Record, results: Path, console: Console) -> None:
    console.print(goals.shown(found))
    console.print(f"saved: {record.save(found, results)}, {draw(found, results)}")
    if results == record.RESULTS:
        goals.renew_pages()


@contextmanager
def _prepared(keep: Path | None, sizes: tuple[Size, ...], console: Console) -> Iterator[tuple[Broker, Path]]:
    """A broker with the topics of some sizes, and a folder for output; expected errors end as one line."""
    try:
        with _folder(keep) as folder, Broker.start(folder / "broker") as broker:
            for each in dict.fromkeys(sizes):
                _feed(broker, each, folder, console)
            with tempfile.TemporaryDirectory(prefix="output-", dir=folder) as output:
                yield broker, Path(output)
    except _EXPECTED_ERRORS as problem:
        console.print(str(problem), style="red", markup=False)
        raise typer.Exit(1) from None


def _feed(broker: Broker, size: Size, folder: Path, console: Console) -> None:
    with console.status(f"feeding {size.messages:,} messages to {size.topics:,} topics ..."):
        written = feed(broker.bootstrap_servers, size, folder)
    console.print(f"{size.name}: {'fed' if written else 'fed before'}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The kept folder, or a temporary one that is removed with its contents."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield Path(folder)


def _known(choices: Mapping[str, T], name: str) -> T:
    if name not in choices:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(choices)}")
    return choices[name]


def _end(_signal: int, _frame: FrameType | None) -> None:
    """End by an exception, so that folders, the broker and the systems are removed too."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    app()
