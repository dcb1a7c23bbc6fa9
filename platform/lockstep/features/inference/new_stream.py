"""Writes the files of a proposed stream into a project, and names it in definitions.py."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.declare.discovery import PACKAGE
from lockstep.features.inference.proposal import ProposedStream, build_proposal
from lockstep.features.inference.sample import read_sample
from lockstep.operations.project_streams import NewStreamRefused, name_in_definitions, refuse_name
from lockstep.settings import KafkaSettings

_EXAMPLE = "lockstep new plant_readings --from TOPIC"
_TAKEN = {
    "msgspec",
    "make_row",
    "to_json",
    "is_snapshot",
    "message",
    "datetime",
    "timedelta",
    "assets",
    "run",
    "record",
}
"""Names that generated files use, besides those that start with read_."""


class NewStream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that was written.

    Attributes:
        stream: Its name.
        topic: The topic from which it was inferred.
        messages: Number of messages that it accepts.
        types: Classes of messages and of their parts.
        integrity: Its integrity class, as source.
        files: The files that were written.
        is_named: Whether definitions.py names it now.
        questions: Questions that the messages do not answer.
    """

    stream: str
    topic: str
    messages: int
    types: tuple[str, ...]
    integrity: str
    files: tuple[str, ...]
    is_named: bool
    questions: tuple[str, ...]


def create_stream(root: Path, name: str, topic: str, settings: KafkaSettings, messages_max: int) -> NewStream:
    """Infer a stream from a topic, and write it.

    1. Refuse the name, or files that exist. 2. Read messages. 3. Propose. 4. Write.

    Args:
        root: Folder of the project.
        name: Name of the stream.
        topic: The topic.
        settings: Kafka.
        messages_max: Most messages that are read.

    Raises:
        NewStreamRefused: The name cannot be used, or one of the files exists.
        NothingToInfer: The topic has no messages that a stream could accept.
        KafkaError: Kafka does not answer.
    """
    _refuse(root, name)  # 1
    sample = read_sample(settings, topic, messages_max)  # 2
    return write_stream(root, build_proposal(name, sample))  # 3, 4


def _refuse(root: Path, name: str) -> None:
    """Refuse a name or folder for which no file can be written.

    Raises:
        NewStreamRefused: Names the reason.
    """
    refuse_name(name, [*_TAKEN, name] if name.startswith("read_") else _TAKEN, _EXAMPLE)
    if not (root / PACKAGE).is_dir():
        step = "run it in the folder of a project; lockstep init FOLDER writes one"
        raise NewStreamRefused(name, f"{root} has no folder {PACKAGE}/", step)
    package = f"{PACKAGE}/{name}"  # Python prefers a package to a module of the same name
    for file in (*list_files(name), package):
        if (root / file).exists():
            raise NewStreamRefused(name, f"{file} exists", "choose another name, or move the file away")


def list_files(name: str) -> tuple[str, str, str]:
    """The files of a stream, its test, and the messages of the test."""
    return f"{PACKAGE}/{name}.py", f"tests/test_{name}.py", f"tests/{name}.jsonl"


def write_stream(root: Path, proposed: ProposedStream) -> NewStream:
    """Write the files of a stream; the stream itself last, so that it is never stored without its test."""
    proposal = proposed.proposal
    stream, test, messages = list_files(proposal.name)
    (root / "tests").mkdir(exist_ok=True)
    for file, text in ((messages, proposed.messages), (test, proposed.test), (stream, proposed.stream)):
        with (root / file).open("x") as out:
            out.write(text)
    return NewStream(
        stream=proposal.name,
        topic=proposal.topic,
        messages=proposal.sampled,
        types=tuple(record.name for record in proposal.records),
        integrity=proposal.integrity,
        files=(stream, test, messages),
        is_named=name_in_definitions(root, proposal.name),
        questions=proposal.questions,
    )
