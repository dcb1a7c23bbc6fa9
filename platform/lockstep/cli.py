"""`lockstep`: what the web UI can do, and what it cannot."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from lockstep.declare.find import streams_in
from lockstep.engine.hands import AnyStream
from lockstep.errors import IntegrityLost, LockstepError, StreamHalted
from lockstep.settings import load_settings
from lockstep.table.layout import StreamFolders

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
OUT, ERR = Console(), Console(stderr=True)

FAILED, HALTED = 1, 3
"""Exit codes: 0 done, 1 an error, 2 wrong arguments, 3 integrity lost or halted."""

StreamName = Annotated[str, typer.Argument(help="Name of a stream in assets/.")]


@app.command()
def run(
    stream: StreamName,
    available_now: Annotated[  # noqa: FBT002  # a flag of a command line
        bool, typer.Option("--available-now", help="Read up to the ends seen now, then end.")
    ] = False,
) -> None:
    """Run a stream here. Example: lockstep run order_books --available-now.

    Ctrl-C ends it at the next batch boundary; nothing is lost either way.
    """
    from lockstep.operations.run import run_attended  # loads the engine

    with _errors():
        outcome = run_attended(_stream(stream), load_settings(), available_now=available_now, say=_say)
        OUT.print(f"{stream}: {outcome.value}")


@app.command()
def status(
    stream: StreamName,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,  # noqa: FBT002  # a flag
) -> None:
    """Show where a stream stands. Example: lockstep status order_books --json."""
    from lockstep.operations.status import status as read_status

    with _errors():
        found = read_status(stream, load_settings())
        if as_json:
            sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
            return
        head = found.head
        OUT.print(f"[bold]{stream}[/bold]: {head.desired.value} ({head.reason})", highlight=False)
        OUT.print(
            f"batch {head.batch}, generation {head.generation}, epoch {head.epoch} ({found.writer}), "
            f"hour {head.hour or '-'}"
        )
        table = Table("topic", "partition", "next offset", "lag (messages)")
        for item in found.partitions:
            lag = "unknown" if item.lag_messages is None else str(item.lag_messages)
            table.add_row(item.topic, str(item.partition), str(item.position), lag)
        OUT.print(table)
        for finding in head.findings:
            OUT.print(f"[red]{finding}[/red]", highlight=False)


@app.command()
def resume(
    stream: StreamName,
    why: Annotated[str, typer.Option(help="The cause that was found; kept in the ledger.")],
    accept_loss: Annotated[
        list[str] | None, typer.Option(help="TOPIC/PARTITION@FROM-UNTIL; may be given again.")
    ] = None,
) -> None:
    """Resume a halted stream. Example: lockstep resume order_books --why "bad deploy" --accept-loss b.eth/0@120-121.

    Without --accept-loss the stream goes on at the very message that halted it.
    """
    from lockstep.operations.resume import Loss
    from lockstep.operations.resume import resume as do_resume

    with _errors():
        folders = StreamFolders(stream, load_settings().table_root)
        losses = tuple(Loss.parse(text) for text in accept_loss or ())
        head = do_resume(folders, why=why, who=getpass.getuser(), accepted=losses)
        OUT.print(f"{stream}: resumed with batch {head.batch}; start it: lockstep run {stream}")


@app.command()
def close(stream: StreamName) -> None:
    """Close the open hour of a stream, so that it can be compacted. Example: lockstep close order_books."""
    from lockstep.operations.close import close_hour

    with _errors():
        closed = close_hour(StreamFolders(stream, load_settings().table_root))
        OUT.print(f"{stream}: hour {closed} is closed; new rows go to the hour after it")


def main() -> None:
    """Entry point of the command."""
    app()


def _stream(name: str) -> AnyStream:
    streams = streams_in(Path.cwd())
    if name not in streams:
        raise LockstepError(
            f"no stream {name!r} in assets/", next_step=f"one of: {', '.join(sorted(streams)) or 'none is declared'}"
        )
    return streams[name]


def _say(line: str) -> None:
    ERR.print(line, highlight=False)


@contextmanager
def _errors() -> Iterator[None]:
    """One clear message instead of a traceback, and an exit code that scripts can tell apart."""
    try:
        yield
    except LockstepError as error:
        ERR.print(f"[red]error:[/red] {error.problem}", highlight=False)
        ERR.print(f"next: {error.next_step}", highlight=False)
        raise typer.Exit(HALTED if isinstance(error, (IntegrityLost, StreamHalted)) else FAILED) from None


if __name__ == "__main__":
    main()
