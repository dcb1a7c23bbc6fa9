"""The declared streams of a platform, and what is wanted of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lockstep.declare.source_form import source_form
from lockstep.engine.hands import AnyStream
from lockstep.errors import LockstepError, TableError
from lockstep.operations.opened import head_or_none
from lockstep.table.layout import StreamFolders


class DeclaredStream(msgspec.Struct, frozen=True):
    """One stream.

    Attributes:
        name: Its name.
        topics: The pattern of its topics.
        exclude: The pattern of topics that are left out; None without one.
        integrity: Its class with its evidence, as declared.
        promise: The promise of the class, in a sentence.
        trigger: When a batch begins, as declared.
        table: Folder of its table.
        desired: "running", "bounded", "stopped", "held" or "halted"; "no table yet" before the first run.
        reason: Why.
        batch: Number of the last committed batch; 0 before the first.
        description: The sentence of the declaration.
    """

    name: str
    topics: str
    exclude: str | None
    integrity: str
    promise: str
    trigger: str
    table: str
    desired: str
    reason: str
    batch: int
    description: str


class UnknownStream(LockstepError):
    """No such stream is declared.

    Attributes:
        name: The name that was given.
    """

    def __init__(self, name: str, known: Mapping[str, AnyStream]) -> None:
        listed = ", ".join(sorted(known)) or "none is declared"
        super().__init__(f"no stream {name!r} in assets/", next_step=f"use one of: {listed}")
        self.name = name


def find_stream(name: str, known: Mapping[str, AnyStream]) -> AnyStream:
    """The stream of a name.

    Raises:
        UnknownStream: Lists those that there are.
    """
    if name not in known:
        raise UnknownStream(name, known)
    return known[name]


def declared_streams(known: Mapping[str, AnyStream], root: Path) -> tuple[DeclaredStream, ...]:
    """All streams by name; a table that cannot be read is said in its stream's reason."""
    return tuple(_declared(known[name], StreamFolders(name, root)) for name in sorted(known))


def _declared(stream: AnyStream, folders: StreamFolders) -> DeclaredStream:
    desired, reason, batch = _standing(folders)
    return DeclaredStream(
        name=stream.name,
        topics=stream.topics.pattern,
        exclude=stream.topics.exclude,
        integrity=source_form(stream.integrity),
        promise=stream.integrity.promise(),
        trigger=source_form(stream.trigger, with_defaults=True),
        table=str(folders.table),
        desired=desired,
        reason=reason,
        batch=batch,
        description=stream.description,
    )


def _standing(folders: StreamFolders) -> tuple[str, str, int]:
    try:
        head = head_or_none(folders)
    except TableError as error:
        return "unreadable", error.problem, 0
    if head is None:
        return "no table yet", f"lockstep start {folders.stream}", 0
    return head.desired.value, head.reason, head.batch
