"""The local Kafka on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import AsJson, Panel, register_command
from lockstep.cli.output import make_lines, print_answer, print_note, style_text

if TYPE_CHECKING:
    from lockstep.features.localdev.local_kafka import LocalKafka

PORT_MAX = 65_535


@register_command("kafka --port 9093", Panel.RUN)
def kafka(
    port: Annotated[int, typer.Option("--port", min=1, max=PORT_MAX, help="Port for clients, on loopback.")] = 9092,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Folder of its topics; by default .kafka here.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Run a local Kafka for development until Ctrl-C; its topics stay in .kafka.

    The first start downloads its jars (40 MB).
    """
    from lockstep.features.localdev.local_kafka import FOLDER, run_kafka

    def show(found: LocalKafka) -> None:
        print_answer(found, _local_kafka, as_json=as_json)
        sys.stdout.flush()

    run_kafka((folder or Path(FOLDER)).absolute(), port, show, print_note)


def _local_kafka(found: LocalKafka) -> RenderableType:
    return make_lines(
        style_text(f"Kafka answers at {found.bootstrap_servers}; Ctrl-C ends it, its topics stay in {found.folder}"),
        style_text(f"  export LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS={found.bootstrap_servers}"),
    )
