"""Inference of streams on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from lockstep.cli.app import AsJson, Panel, load_settings_or_exit, register_command
from lockstep.cli.output import make_facts, make_lines, print_answer, style_text

if TYPE_CHECKING:
    from lockstep.features.inference.new_stream import NewStream


@register_command("new meter_readings --from meters.north", Panel.INSTALLATION)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the stream: lower-case words, joined by _.")],
    topic: Annotated[str, typer.Option("--from", metavar="TOPIC", help="Topic with JSON messages.")],
    messages: Annotated[int, typer.Option("--messages", min=1, max=100_000, help="Most messages to read.")] = 10_000,
    as_json: AsJson = False,  # noqa: FBT002  # a flag
) -> None:
    """Write a stream for the JSON messages of a topic: types, session, snapshots, integrity class, and a test.

    The strongest class that accepts every message is declared. The file asks the questions that messages cannot answer.
    """
    from lockstep.features.inference.new_stream import create_stream

    settings = load_settings_or_exit()
    print_answer(create_stream(Path.cwd(), name, topic, settings.kafka, messages), _new_stream, as_json=as_json)


def _new_stream(found: NewStream) -> RenderableType:
    named = "definitions.py names it" if found.is_named else "name it in STREAMS of definitions.py"
    return make_lines(
        make_facts(
            (
                ("stream", found.stream),
                ("inferred from", f"{found.messages:,} messages of {found.topic}"),
                ("integrity", found.integrity),
                ("files", ", ".join(found.files)),
                ("Dagster", named),
            )
        ),
        *(style_text(f"question: {each}") for each in found.questions),
        style_text(f"next: read {found.files[0]}, then lockstep try {found.stream}"),
    )
