"""The exporter of metrics on the command line."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from lockstep.cli.app import (
    AsJson,
    Panel,
    list_all_streams,
    load_settings_or_exit,
    register_command,
)
from lockstep.cli.output import (
    print_answer,
    style_text,
)


class Exporter(msgspec.Struct, frozen=True):
    """A listening exporter of metrics."""

    address: str
    streams: tuple[str, ...]


@register_command("metrics --port 9464", Panel.INSPECT)
def metrics(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for a free one.")] = 9464,
    host: Annotated[str, typer.Option(help="Address to listen on; there is no login.")] = "127.0.0.1",
    *,
    partitions: Annotated[bool, typer.Option("--partitions", help="Also the lag of each partition.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve the health of all streams as Prometheus metrics, on loopback by default, until Ctrl-C.

    Streams are read when they are scraped. Prints the address once it listens.
    """
    from lockstep.features.health.exporter import HealthCollector, start_exporter

    declared = list_all_streams()
    collector = HealthCollector(declared.values(), load_settings_or_exit(), has_partitions=partitions)
    server = start_exporter(collector, host, port)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    exporter = Exporter(f"http://{host}:{server.server_port}/metrics", tuple(sorted(declared)))
    print_answer(exporter, _exporter, as_json=as_json)
    sys.stdout.flush()
    over.wait()
    server.shutdown()
    server.server_close()


def _exporter(found: Exporter) -> RenderableType:
    return style_text(f"{found.address}: {', '.join(found.streams) or 'no stream is declared'}")
