"""The live page on the command line."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.cli.app import AsJson, Panel, list_all_streams, load_settings_or_exit, register_command
from lockstep.cli.output import print_answer, style_text

CONSOLE_PORT = 3002
"""Dagster has port 3000, and 3001 for its viewers in docker-compose.yml."""


class ServedPage(msgspec.Struct, frozen=True):
    """A page that is served."""

    address: str
    streams: tuple[str, ...]


@register_command("console --port 3002", Panel.INSPECT)
def console(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = CONSOLE_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on; there is no login.")] = "127.0.0.1",
    as_json: AsJson = False,  # noqa: FBT002  # a flag of a command line
) -> None:
    """Serve a live page of all streams to a browser, on loopback by default, until Ctrl-C.

    State, alarms with their next commands, lag, rates, phases of batches, quarantine, history, checks. It changes
    nothing. Streams are read while somebody watches. Prints the address once it listens.
    """
    from lockstep.features.console.server import ConsoleServer
    from lockstep.features.console.watcher import ConsoleWatcher

    declared = list_all_streams()
    settings = load_settings_or_exit()
    server = ConsoleServer(ConsoleWatcher(declared.values(), settings), host, port, settings.web.origins)
    page = ServedPage(f"http://{host}:{server.port}", tuple(sorted(declared)))
    print_answer(page, _show, as_json=as_json)
    sys.stdout.flush()
    server.serve()


def _show(found: ServedPage) -> RenderableType:
    return style_text(f"{found.address}: {', '.join(found.streams) or 'no stream is declared'}")
