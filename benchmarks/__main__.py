"""Runs the benchmark: `python -m benchmarks --help`."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from benchmarks.feed import FeedIncompleteError, feed
from benchmarks.measure import CommandFailedError
from benchmarks.report import save, show
from benchmarks.rounds import Plan, WrongRowsError, measure_all
from benchmarks.systems import SYSTEMS
from benchmarks.workload import SIZES, SMOKE, Size
from lockstep.errors import LockstepError
from lockstep.rehearsal.broker import Broker

T = TypeVar("T")

RESULTS = Path(__file__).with_name("results")
_EXPECTED_ERRORS = (LockstepError, FeedIncompleteError, CommandFailedError, WrongRowsError)


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "main",
    repeat: Annotated[int, typer.Option(help="Runs of each system, taken in turns.", min=1)] = 3,
    systems: Annotated[str, typer.Option(help="Comma-separated; ratios are to the first.")] = ",".join(SYSTEMS),
    batch_messages: Annotated[int, typer.Option(help="Messages of a batch.", min=1)] = 200_000,
    keep: Annotated[Path | None, typer.Option(help="Keep the broker's data here for the next run.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = RESULTS,
) -> None:
    """Fold the same messages by each system, prove the rows equal, and print what it cost."""
    console = Console()
    try:
        chosen = tuple(_known(SYSTEMS, name) for name in systems.split(","))
        plan = Plan(_known(SIZES, size), SMOKE, chosen, repeat, batch_messages)
        with _folder(keep) as folder, Broker.start(folder / "broker") as broker:
            for each in dict.fromkeys((plan.smoke, plan.size)):
                _feed(broker, each, folder, console)
            with tempfile.TemporaryDirectory(prefix="output-", dir=folder) as output:
                report = measure_all(plan, broker.bootstrap_servers, Path(output), console)
    except _EXPECTED_ERRORS as problem:
        console.print(str(problem), style="red", markup=False)
        raise typer.Exit(1) from None
    show(report, console)
    console.print(f"saved: {save(report, results)}")


def _feed(broker: Broker, size: Size, folder: Path, console: Console) -> None:
    with console.status(f"feeding {size.messages:,} messages to {size.topics:,} topics ..."):
        written = feed(broker.bootstrap_servers, size, folder)
    console.print(f"{size.name}: {'fed' if written else 'fed before'}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """The kept folder, or one that is gone afterwards with all that is in it."""
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
    """End by an exception, so that folders, the broker and the systems go too."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    typer.run(main)
