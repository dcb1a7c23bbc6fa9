"""Writes the files of a proposed stream into a project, and names it in definitions.py."""

from __future__ import annotations

import ast
import builtins
import keyword
from pathlib import Path

import msgspec

from lockstep.declare.discovery import PACKAGE
from lockstep.declare.naming import NAME, NO_NAME
from lockstep.errors import LockstepError
from lockstep.features.inference.proposal import ProposedStream, build_proposal
from lockstep.features.inference.sample import read_sample
from lockstep.settings import KafkaSettings

DEFINITIONS = "definitions.py"
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
"""Names that generated files use, besides those that begin with read_."""


class NewStreamRefused(LockstepError):
    """A stream cannot be written here under this name.

    Attributes:
        name: The name.
    """

    def __init__(self, name: str, problem: str, next_step: str) -> None:
        super().__init__(f"stream {name!r} cannot be written: {problem}", next_step=next_step)
        self.name = name


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
    refuse_name(root, name)  # 1
    sample = read_sample(settings, topic, messages_max)  # 2
    return write_stream(root, build_proposal(name, sample))  # 3, 4


def refuse_name(root: Path, name: str) -> None:
    """Refuse a name or folder for which no file can be written.

    Raises:
        NewStreamRefused: Names the reason.
    """
    if NAME.fullmatch(name) is None:
        raise NewStreamRefused(name, NO_NAME, "for example: lockstep new plant_readings --from TOPIC")
    if keyword.iskeyword(name) or name in _TAKEN or name.startswith("read_") or hasattr(builtins, name):
        raise NewStreamRefused(name, "Python or the new file uses this name", f"add a word: {name}_stream")
    if not (root / PACKAGE).is_dir():
        step = "run it in the folder of a project; lockstep init FOLDER writes one"
        raise NewStreamRefused(name, f"{root} has no folder {PACKAGE}/", step)
    for file in list_files(name):
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
        is_named=_name_in_definitions(root / DEFINITIONS, proposal.name),
        questions=proposal.questions,
    )


def _name_in_definitions(file: Path, name: str) -> bool:
    """Add a stream to STREAMS of definitions.py; False if `lockstep init` has not written the file so."""
    try:
        before = file.read_text()
        after = add_to_definitions(before, name)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False
    if after is None:
        return False
    file.write_text(after)
    return True


def add_to_definitions(text: str, name: str) -> str | None:
    """The text of definitions.py with one stream more; None without a plain tuple STREAMS, or with this name in use.

    Raises:
        SyntaxError: The text is not Python.
    """
    tree = ast.parse(text)
    streams = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "STREAMS"
    ]
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0]
    if len(streams) != 1 or not isinstance(streams[0], ast.Tuple) or not imports or f" {name}\n" in text:
        return None
    value = streams[0]
    lines = text.splitlines(keepends=True)
    if value.lineno != value.end_lineno or value.end_col_offset is None:
        return None
    line = lines[value.lineno - 1]
    items = [ast.get_source_segment(text, each) or "" for each in value.elts]
    shown = f"({', '.join([*items, name])}{',' if not items else ''})"
    lines[value.lineno - 1] = line[: value.col_offset] + shown + line[value.end_col_offset :]
    own = [node for node in imports if (node.module or "").startswith(f"{PACKAGE}.")]
    local = [node for node in imports if (node.module or "").split(".")[0] in {"jobs", "lockstep", "sensors"}]
    at = (own[-1].end_lineno or own[-1].lineno) if own else (local or imports)[0].lineno - 1
    lines.insert(at, f"from {PACKAGE}.{name} import {name}\n")
    changed = "".join(lines)
    ast.parse(changed)
    return changed
