"""Shared parts of all commands: the application, arguments, error messages and exit codes.

Nothing here or in a command's file imports Spark, Kafka or Delta, so `lockstep --help` responds at once. Each command
imports its operation when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from lockstep.errors import KafkaUnreachable, LockstepError
from lockstep.feature import load_parts
from lockstep.foreign_errors import explain_error, explain_errors
from lockstep.integrity.resume_options import IntegrityLost, StreamHalted

if TYPE_CHECKING:
    from lockstep.declare.derived import Derived
    from lockstep.declare.discovery import ModuleBroken
    from lockstep.declare.stream import AnyStream
    from lockstep.operations.stream_handle import StreamHandle
    from lockstep.settings import Settings
    from lockstep.table.layout import StreamFolders


DONE = 0
FAILED = 1
WRONG_ARGUMENTS = 2
INTEGRITY_LOST = 3
NOT_PROVEN = 4
KAFKA_AWAY = 5
EXIT_CODES = {
    DONE: "done",
    FAILED: "an error, which names the next step",
    WRONG_ARGUMENTS: "wrong arguments",
    INTEGRITY_LOST: "integrity was lost: the stream is halted, or `verify` found a violation",
    NOT_PROVEN: "`verify` found no violation, and could not prove everything, or an unaccepted loss",
    KAFKA_AWAY: "Kafka did not answer for as long as the command waits; earlier commits stay",
}

SHORT_EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 wrong arguments, 3 integrity lost, 4 not proven,\n5 Kafka did not answer."
)
SUMMARY = "Run, inspect and repair ordered, stateful streams from Kafka to Delta."
DAILY = ("status", "streams", "try", "run", "start", "stop", "resume", "query", "verify", "doctor")
"""Commands of daily use, as `lockstep --help` lists them."""

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of a stream; `lockstep streams` lists them.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document, for scripts.")]

F = TypeVar("F", bound=Callable[..., None])


SAVEPOINTS: Final = "Keep batches restorable for longer than `rewind_hours`, and move them to another table root."


class Panel(Enum):
    """The groups of `lockstep --help`."""

    INSPECT = "Inspect"
    RUN = "Run"
    MAINTAIN = "Maintain"
    RECOVER = "Recover"
    INSTALLATION = "Installation"


class _Lockstep(TyperGroup):
    """Shows errors as one clear message instead of a traceback, with a distinct exit code for scripts.

    Its help fits on a screen: the summaries of daily commands, and the names of the others.
    """

    def list_commands(self, ctx: Any) -> list[str]:  # typer's own signature
        del ctx
        return [*DAILY, *chain.from_iterable(map(self._list_names, Panel))]

    def _list_names(self, panel: Panel) -> list[str]:
        """Names of the commands of a panel that are not of daily use."""
        names = list[str]()
        for name, command in self.commands.items():
            if vars(command)["rich_help_panel"] == panel.value and name not in DAILY:
                names.append(name)
        return names

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's own signature
        return super().parse_args(ctx, args or ["--help"])  # typer would print its own help

    def format_help(self, ctx: Any, formatter: Any) -> None:  # typer's own signature
        del ctx
        formatter.write_usage("lockstep", "COMMAND [STREAM] [OPTIONS]")
        formatter.write_paragraph()
        formatter.write(f"{SUMMARY}\n")
        with formatter.section("Daily use"):
            formatter.write_dl([(name, str(self.commands[name].help).partition("\n")[0]) for name in DAILY])
        with formatter.section("Other commands"):
            formatter.write_dl([(panel.value, ", ".join(self._list_names(panel))) for panel in Panel])
        formatter.write_paragraph()
        formatter.write(f"`lockstep COMMAND --help` shows options and an example.\n{SHORT_EXIT_CODES}\n")

    def invoke(self, ctx: Any) -> Any:  # typer's own signature
        try:
            return super().invoke(ctx)
        except Exception as error:
            if (explained := explain_error(error)) is None:
                raise
            show_error(explained)
            raise typer.Exit(find_exit_code(explained)) from None


def find_exit_code(error: LockstepError) -> int:
    """The exit code of a command that ends with an error."""
    if isinstance(error, (IntegrityLost, StreamHalted)):
        return INTEGRITY_LOST
    return KAFKA_AWAY if isinstance(error, KafkaUnreachable) else FAILED


app = typer.Typer(
    cls=_Lockstep,
    help=SUMMARY,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:  # noqa: FBT001  # a flag of a command line
    if asked:
        from lockstep import __version__

        sys.stdout.write(f"lockstep {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: FBT002  # a flag
        bool, typer.Option("--version", help="Print the version, and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # answered by its callback


def register_command(
    example: str, panel: Panel, *, name: str | None = None, within: typer.Typer | None = None
) -> Callable[[F], F]:
    """Add a command to the application.

    Args:
        example: A whole command line after `lockstep`, shown by --help; a test parses it.
        panel: Its group in `lockstep --help`.
        name: Its name, if not the function's.
        within: The group of commands that it belongs to, if any.
    """
    group = within if within is not None else app
    present = {each.name or getattr(each.callback, "__name__", ""): each for each in group.registered_commands}
    register = group.command(name, epilog=f"Example: lockstep {example}", rich_help_panel=panel.value)

    def add(command: F) -> F:
        called = name or command.__name__
        if called in present:
            if _name_origin(present[called].callback) == _name_origin(command):
                return command  # its module is imported again, from a copy of the code
            raise LockstepError(f"the command {called} is there already", next_step="rename one of them")
        register(_name_its_stream(command))
        return command

    return add


def _name_origin(command: Callable[..., object] | None) -> tuple[str, str]:
    """Module and name of a command's function."""
    return getattr(command, "__module__", ""), getattr(command, "__qualname__", "")


def _name_its_stream(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose errors name its stream in their next step."""
    if "stream" not in command.__annotations__:
        return command

    @wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:  # the arguments of any command
        from lockstep.cli.progress import show_progress  # loads the bars

        with show_progress(), explain_errors(kwargs["stream"] or ""):
            command(*args, **kwargs)

    return call


def make_group(name: str, panel: Panel, summary: str) -> typer.Typer:
    """A group of commands, `lockstep NAME ...`, with its place in `lockstep --help`; two features may share one."""
    for group in app.registered_groups:
        if group.name == name and group.typer_instance is not None:
            return group.typer_instance
    made = typer.Typer(no_args_is_help=True)
    app.add_typer(made, name=name, help=summary, rich_help_panel=panel.value)
    return made


def parse_time(text: str) -> datetime:
    """A moment in an argument: ISO 8601, or as commands print it; UTC unless it names another zone."""
    try:
        moment = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T09:30:00Z (UTC without a zone)") from None


def require_reason(why: str | None) -> str | None:
    """The text of `--why`: it is kept for good, and shown to those who ask what happened."""
    if why is not None and not why.strip():
        raise typer.BadParameter("is empty; name the reason for later readers")
    return why


def refuse_unwritable_page(file: Path | None, option: str) -> None:
    """Refuse a page that could not be written when the work whose result it shows is done.

    Raises:
        typer.BadParameter: It cannot be written, and why.
    """
    from lockstep.html_page import check_page_path

    if file is None:
        return
    try:
        check_page_path(file)
    except OSError as error:
        problem = f"{file.absolute()} cannot be written: {error.strerror}"
        raise typer.BadParameter(problem, param_hint=option) from None


def list_all_streams(folder: Path | None = None) -> dict[str, AnyStream]:
    """The streams declared in assets/; a file that cannot be imported is named and left out.

    Args:
        folder: The folder of assets/; by default the working folder.
    """
    from lockstep.declare.discovery import find_streams

    if folder is None:
        folder = Path.cwd()
    return dict(find_streams(folder, on_broken=_note_broken))


def pin_working_folder() -> Path:
    """The folder from which a run of this process imports streams: a copy that nothing changes."""
    from lockstep.user_code.pin import pin_code

    return pin_code(Path.cwd(), load_settings_or_exit())


def list_all_derived() -> dict[str, Derived]:
    """The derived tables declared in assets/ of the working folder; as `list_all_streams`."""
    from lockstep.declare.discovery import find_derived

    return find_derived(Path.cwd(), on_broken=_note_broken)


_NOTED: Final[set[str]] = set()


def _note_broken(broken: ModuleBroken) -> None:
    """Report once that a file is left out: an operator needs the other streams while somebody corrects it."""
    if broken.file in _NOTED:
        return
    from lockstep.cli.output import print_note

    _NOTED.add(broken.file)
    print_note(f"left out: {broken.problem}", style="red")
    print_note(f"next: {broken.next_step}")


def find_stream_or_exit(name: str, folder: Path | None = None) -> AnyStream:
    """A declared stream, or a shadow, whose code its table names.

    Args:
        name: Name of the stream.
        folder: The folder of assets/; by default the working folder.

    Raises:
        UnknownStream: Lists the declared streams.
        ShadowCodeChanged: The code of a shadow differs from its code at the start.
    """
    from lockstep.operations.inspect.streams import find_stream

    declared = list_all_streams(folder)
    if name in declared:
        return declared[name]
    settings = load_settings_or_exit()
    for find in load_parts("stream_finders"):  # of features: shadows
        stream: AnyStream | None = find(name, settings)
        if stream is not None:
            return stream
    return find_stream(name, declared, settings.table_root)


def load_settings_or_exit() -> Settings:
    """The settings in force."""
    from lockstep.settings import load_settings

    return load_settings()


def find_folders(name: str) -> StreamFolders:
    """Folders of the tables of a declared stream, or of a shadow."""
    from lockstep.table.layout import StreamFolders

    return StreamFolders(find_stream_or_exit(name).name, load_settings_or_exit().table_root)


def open_handle(name: str) -> StreamHandle:
    """A declared stream with its table and its cluster, for one snapshot."""
    from lockstep.operations.stream_handle import StreamHandle

    return StreamHandle(find_stream_or_exit(name), load_settings_or_exit())


def show_error(error: LockstepError) -> None:
    """The problem and the next step, on the error stream."""
    from lockstep.cli.output import print_note

    print_note("error: " + error.problem, style="red")
    print_note("next: " + error.next_step)
    sys.stderr.flush()
