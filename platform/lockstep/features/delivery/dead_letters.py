"""Dead letters of a delivery: rows that it leaves out by declaration, for people who correct the cause.

    <table root>/_deliveries/<name>.dead/<batch>-<digest of the identity>.json

The token has the identity of each dead letter, so that rows, token and dead letters agree; a file is a copy for people,
and a file that no token has is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from lockstep.declare.delivery_target import DeadRow, RowSource
from lockstep.features.delivery.erasures import ErasedSession
from lockstep.features.delivery.events import FOLDER
from lockstep.model.decoding import decode_json
from lockstep.model.position import TopicIdPartition
from lockstep.storage import find_storage
from lockstep.table.session_digest import compute_session_digest

DEAD_MAX = 100
"""Dead letters of a delivery, at most; then it halts. The token, which each write repeats, has 100 bytes for each."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A row that a delivery has left out.

    Attributes:
        at: Time (UTC).
        row: Identity of the row: `<topic id>/<partition>/<emit offset>/<row>`.
        generation: The generation that wrote its batch.
        batch: Its batch.
        topic: Source topic.
        offset: Offset of the message that caused the row.
        session: Its session.
        problem: Reason.
        value: The row as JSON; its text if JSON cannot hold it.
    """

    at: datetime
    row: str
    generation: int
    batch: int
    topic: str
    offset: int
    session: str
    problem: str
    value: str


def make_dead_row(origin: RowSource) -> DeadRow:
    """The entry of a row in the token."""
    return DeadRow(row=origin.identity, generation=origin.generation, batch=origin.batch)


def write_dead_letter(root: Path, name: str, value: msgspec.Struct, origin: RowSource, problem: str) -> None:
    """Write the file of a dead letter; it replaces that of an earlier attempt."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError):
        encoded = msgspec.json.encode(ascii(value))
    letter = DeadLetter(
        at=datetime.now(UTC),
        row=str(origin.identity),
        generation=origin.generation,
        batch=origin.batch,
        topic=origin.topic,
        offset=origin.offset,
        session=origin.session,
        problem=problem,
        value=encoded.decode(),
    )
    path = _make_folder(root, name) / _name_file(make_dead_row(origin))
    find_storage(path).replace(path, msgspec.json.encode(letter))


def list_dead_letters(root: Path, name: str) -> list[Path]:
    """List the files of the dead letters of a delivery, in order of batch."""
    folder = _make_folder(root, name)
    return [folder / each for each in sorted(find_storage(folder).list_names(folder)) if each.endswith(".json")]


def delete_other_letters(root: Path, name: str, dead: Collection[DeadRow]) -> None:
    """Delete the files of dead letters that the token does not have: they were delivered, or erased."""
    wanted = {_name_file(each) for each in dead}
    for path in list_dead_letters(root, name):
        if path.name not in wanted:
            find_storage(path).delete(path)


def list_kept(
    root: Path, name: str, dead: Sequence[DeadRow], sessions: Iterable[ErasedSession], table_id: str
) -> tuple[DeadRow, ...]:
    """List the dead letters that are not of an erased session; the session is in the file."""
    erased = {(each.key, each.digest) for each in sessions}
    kept = list[DeadRow]()
    for each in dead:
        path = _make_folder(root, name) / _name_file(each)
        try:
            letter = decode_json(find_storage(path).read(path), DeadLetter)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            kept.append(each)
            continue
        key = TopicIdPartition(each.row.topic_id, each.row.partition)
        if (key, compute_session_digest(table_id, letter.session)) not in erased:
            kept.append(each)
    return tuple(kept)


def _make_folder(root: Path, name: str) -> Path:
    return root / FOLDER / f"{name}.dead"


def _name_file(dead: DeadRow) -> str:
    digest = hashlib.sha256(f"{dead.generation}/{dead.row}".encode()).hexdigest()[:16]
    return f"{dead.batch:010d}-{digest}.json"
