"""The file of a proposed stream, and of its test. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.features.inference.evidence import EventTimePlace, MessageMark, Order, Path
from lockstep.features.inference.message_types import Inferred, PartType, to_camel
from lockstep.features.inference.readers import COLUMNS_MAX, RowColumns, render_reader

_TO_MICROSECONDS = {"s": " * 1_000_000", "ms": " * 1_000", "us": "", "ns": " // 1_000"}
WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class StreamProposal:
    """The content of the file of a stream.

    Attributes:
        name: The stream.
        topic: The topic.
        sampled: Number of messages from which it was inferred.
        message: The type of messages.
        records: Classes of messages and their parts, each after those that it needs.
        session: Place of the session; None for the key, "partition" for one session a partition.
        snapshot: The messages that set the whole state; None without any.
        order: The order that holds.
        event_time: Place of the event time; None for Kafka's timestamp.
        integrity: The integrity class, as source.
        starts_at_snapshot: Whether messages before the first snapshot of a session are skipped.
        questions: Questions that the messages do not answer.
    """

    name: str
    topic: str
    sampled: int
    message: Inferred
    records: tuple[PartType, ...]
    session: Path | str | None
    snapshot: MessageMark | None
    order: Order
    event_time: EventTimePlace | None
    integrity: str
    starts_at_snapshot: bool = False
    questions: tuple[str, ...] = ()


def render_stream(proposal: StreamProposal) -> str:
    """The file of a stream."""
    columns = RowColumns()
    for kind in proposal.message.kinds:
        if kind.record is not None:
            columns.add_message(kind.record)
    is_whole = len(columns.rows) == len(proposal.message.kinds) and not proposal.message.nullable
    # Then each row has the whole message as JSON.
    if not is_whole or len(columns.types) > COLUMNS_MAX:
        columns = RowColumns()
    body = [
        *_render_records(proposal.records),
        *_render_message(proposal),
        *_render_row(proposal, columns),
        *_render_readers(proposal),
        *_render_make_row(proposal, columns),
        *_render_transform(proposal),
        *_render_declaration(proposal),
    ]
    text = "\n".join(body)
    return _render_head(proposal, text) + text.rstrip("\n") + "\n"


def _render_message(proposal: StreamProposal) -> Iterator[str]:
    """The name of the type of messages, unless it is a class of this name."""
    source = proposal.message.source()
    if source == "Message":
        return
    # Generated files pass the formatter's check unchanged.
    if len(source) > WIDTH - len("Message = "):
        source = "(\n    " + "\n    | ".join(source.split(" | ")) + "\n)"
    yield f"Message = {source}"
    yield from ("", "")


def _render_head(proposal: StreamProposal, text: str) -> str:
    questions = [f"{number}. {question}" for number, question in enumerate(proposal.questions, 1)]
    lines = [
        f'"""Messages of the topic {proposal.topic}, as `lockstep new` has inferred them from {proposal.sampled:,}.',
        "",
        "Questions that the messages do not answer:",
        "",
        *questions,
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Iterable",
    ]
    needed = [name for name in ("datetime", "timedelta") if name in text]
    if needed:
        lines.append(f"from datetime import {', '.join(needed)}")
    if "Decimal" in text.replace("DecimalType", ""):
        lines.append("from decimal import Decimal")
    typing = [name for name in ("Annotated", "Any") if name in text]
    if typing:
        lines.append(f"from typing import {', '.join(typing)}")
    names = sorted(name for name in _PUBLIC if _uses(text, name))
    imported = f"from lockstep import {', '.join(names)}"
    if len(imported) > WIDTH:
        imported = "from lockstep import (\n" + "".join(f"    {name},\n" for name in names) + ")"
    lines += ["", "import msgspec", "", imported, ""]
    if "DECIMAL" in text:
        lines += ["DECIMAL = DecimalType(38, 18)"]
    return "\n".join([*lines, "", ""])


_PUBLIC = (
    *("DecimalType", "Envelope", "FirstSnapshot", "FlatMap", "FuzzyWindow", "InitialState", "Kind", "Link", "Linked"),
    *("LogOnly", "NoIntegrity", "Record", "Sequence", "SessionStart", "Stream", "Strict", "Topics", "Transform"),
)


def _uses(text: str, name: str) -> bool:
    if name == "DecimalType":
        return "DECIMAL" in text
    return re.search(rf"(?<![A-Za-z0-9_.`\"]){name}(?![A-Za-z0-9_`\"])", text) is not None


def _render_records(records: Sequence[PartType]) -> Iterator[str]:
    for record in records:
        options = ["array_like=True"] if record.is_list else ["kw_only=True"]
        if record.tag_field:
            options = [f"tag={record.tag!r}", f"tag_field={record.tag_field!r}", *options]
        renamed = {part.name: part.wire for part in record.fields if part.name != part.wire}
        # A list has positions instead of names.
        if renamed and not record.is_list:
            options.append(f"rename={renamed!r}")
        yield f"class {record.name}(msgspec.Struct, {', '.join(options)}):"
        yield f'    """`{record.place}` of the messages."""'
        yield ""
        for part in record.fields:
            default = " = None" if part.is_optional else ""
            yield f"    {part.name}: {part.kind.source()}{default}"
        if record.fields:
            yield ""
        yield ""


def _render_row(proposal: StreamProposal, columns: RowColumns) -> Iterator[str]:
    yield f"class {to_camel(proposal.name)}Row(msgspec.Struct, frozen=True, kw_only=True):"
    yield '    """A row of the table: one for each message; parts without columns are JSON."""'
    yield ""
    if len(columns.rows) > 1:
        yield "    kind: str"
    for name, kind in columns.types.items():
        yield f"    {name}: {kind} | None = None"
    if not columns.types:
        yield "    message: str | None = None"
    yield from ("", "")


def _render_readers(proposal: StreamProposal) -> Iterator[str]:
    for name, path, result in _list_readers(proposal):
        yield from render_reader(name, "Message", proposal.message, path, result)
        yield from ("", "")
    if proposal.snapshot is not None:
        yield from _render_is_snapshot(proposal.message, proposal.snapshot)
    if proposal.order.kind == "linked":
        yield from _render_read_link(proposal.order)


def _list_readers(proposal: StreamProposal) -> Iterator[tuple[str, Path, str]]:
    order = proposal.order
    if isinstance(proposal.session, tuple):
        yield "read_session", proposal.session, "str"
    if proposal.snapshot is not None and find_tagged(proposal.message, proposal.snapshot) is None:
        yield "read_snapshot_mark", proposal.snapshot.path, "object"
    if order.kind in {"sequence", "window"} and order.number is not None:
        yield "read_sequence", order.number, "int"
    if order.kind == "linked":
        ids = (
            ("last", order.number),
            ("first", order.first),
            ("previous", order.previous),
            ("snapshot", order.opening),
        )
        yield from ((f"read_{name}_id", path, "int") for name, path in ids if path is not None)
    if proposal.event_time is not None:
        yield "read_time", proposal.event_time.path, "int"


def find_tagged(message: Inferred, snapshot: MessageMark) -> PartType | None:
    """The class of the messages that a predicate holds for, if the types of messages tell them apart."""
    for kind in message.kinds:
        record = kind.record
        if record is None or not record.tag_field:
            continue
        if ((record.tag_field,), record.tag) == (snapshot.path, snapshot.value):
            return record
    return None


def _render_is_snapshot(message: Inferred, snapshot: MessageMark) -> Iterator[str]:
    tagged = find_tagged(message, snapshot)
    test = f"read_snapshot_mark(message) == {snapshot.value!r}"
    if tagged is not None:
        test = f"isinstance(message, {tagged.name})"
    elif snapshot.value is None:
        test = "read_snapshot_mark(message) is not None"
    elif snapshot.value is True:
        test = "read_snapshot_mark(message) is True"
    yield "def is_snapshot(message: Message) -> bool:"
    yield '    """Whether a message sets the whole state of its session."""'
    yield f"    return {test}"
    yield from ("", "")


def _render_read_link(order: Order) -> Iterator[str]:
    yield "def read_link(message: Message) -> Link | None:"
    yield '    """The ids by which a message names its place."""'
    yield "    if is_snapshot(message):"
    yield "        opened = read_snapshot_id(message)"
    yield "        return None if opened is None else Link(last=opened)"
    yield "    last = read_last_id(message)"
    names = [name for name, path in (("first", order.first), ("previous", order.previous)) if path is not None]
    parts = "".join(f", {name}=read_{name}_id(message)" for name in names)
    yield f"    return None if last is None else Link(last=last{parts})"
    yield from ("", "")


def _render_make_row(proposal: StreamProposal, columns: RowColumns) -> Iterator[str]:
    row = f"{to_camel(proposal.name)}Row"
    if columns.documents or not columns.types:
        yield "def to_json(value: object) -> str | None:"
        yield '    """A part of a message without columns of its own, as JSON."""'
        yield "    return None if value is None else msgspec.json.encode(value).decode()"
        yield from ("", "")
    yield f"def make_row(message: Message) -> {row}:"
    yield '    """The row of a message."""'
    if not columns.types:
        yield f"    return {row}(message=to_json(message))"
        yield from ("", "")
        return
    names = list(columns.rows)
    for name in names:
        lines, expressions = columns.rows[name]
        indent = ""
        if name != names[-1]:
            yield f"    if isinstance(message, {name}):"
            indent = "    "
        yield from (f"{indent}{line}" for line in lines)
        yield f"{indent}    return {row}("
        if len(names) > 1:
            yield f"{indent}        kind={_find_tag(proposal, name)!r},"
        for column, expression in expressions.items():
            shown = _to_json(expression) if column in columns.documents else expression
            yield f"{indent}        {column}={shown},"
        yield f"{indent}    )"
    yield from ("", "")


def _to_json(expression: str) -> str:
    """The expression of a column of JSON; a guard against an absent object stays in front."""
    guard, word, value = expression.rpartition(" else ")
    return f"{guard}{word}to_json({value})"


def _find_tag(proposal: StreamProposal, name: str) -> str:
    return next(str(record.tag) for record in proposal.records if record.name == name)


def _render_transform(proposal: StreamProposal) -> Iterator[str]:
    row = f"{to_camel(proposal.name)}Row"
    name = to_camel(proposal.name)
    if proposal.snapshot is None:
        yield f"class {name}(FlatMap[Message, {row}]):"
        yield '    """One row for each message; nothing is remembered."""'
    else:
        yield f"class {name}State(msgspec.Struct):"
        yield '    """The state of a session; put here what later messages need of earlier ones."""'
        yield ""
        yield "    messages: int = 0"
        yield from ("", "")
        yield f"class {name}(Transform[Message, {name}State, {row}]):"
        yield '    """One row for each message; a session begins with a snapshot."""'
    yield ""
    yield from _render_envelope(proposal)
    yield from _render_hooks(proposal, name, row)
    yield from ("", "")


def _render_envelope(proposal: StreamProposal) -> Iterator[str]:
    yield "    def envelope(self, message: Message, record: Record) -> Envelope:"
    yield '        """Session, kind and evidence of a message."""'
    order = proposal.order
    session = "record.key_text"
    if proposal.session == "partition":
        session = "str(record.partition)"
    elif proposal.session is not None:
        session = 'read_session(message) or ""'
    yield f"        session = {session}"
    if order.kind in {"sequence", "window"}:
        yield "        sequence = read_sequence(message)"
        yield "        if sequence is None:"
        yield "            return Envelope(session, Kind.SKIP)"
    if order.kind == "linked":
        yield "        link = read_link(message)"
        yield "        if link is None:"
        yield "            return Envelope(session, Kind.SKIP)"
    if proposal.event_time is not None:
        yield "        time = read_time(message)"
    yield "        return Envelope("
    yield "            session,"
    if proposal.snapshot is not None:
        yield "            Kind.SNAPSHOT if is_snapshot(message) else Kind.UPDATE,"
    yield from (f"            {part}," for part in _list_envelope_parts(proposal))
    yield "        )"
    yield ""


def _list_envelope_parts(proposal: StreamProposal) -> Iterator[str]:
    if proposal.order.kind in {"sequence", "window"}:
        yield "sequence=sequence"
    if proposal.order.kind == "linked":
        yield "sequence=link.last"
        yield "link=link"
    if proposal.event_time is not None:
        factor = _TO_MICROSECONDS[proposal.event_time.unit]
        yield f"event_time_us=None if time is None else time{factor}"


def _render_hooks(proposal: StreamProposal, name: str, row: str) -> Iterator[str]:
    if proposal.snapshot is None:
        yield f"    def flat_map(self, message: Message, record: Record) -> Iterable[{row}]:"
        yield '        """The rows of a message."""'
        yield "        yield make_row(message)"
        return
    yield "    def on_snapshot("
    yield f"        self, message: Message, record: Record, previous: {name}State | None"
    yield f"    ) -> InitialState[{name}State, {row}]:"
    yield '        """Begin a session, or replace its state."""'
    yield f"        return InitialState({name}State(), [make_row(message)])"
    yield ""
    yield f"    def on_update(self, state: {name}State, message: Message, record: Record) -> Iterable[{row}]:"
    yield '        """Change the state, and give the rows of a message."""'
    yield "        state.messages += 1"
    yield "        yield make_row(message)"


def _render_declaration(proposal: StreamProposal) -> Iterator[str]:
    pattern = proposal.topic.replace(".", r"\.")
    start = ", start=FirstSnapshot()" if proposal.starts_at_snapshot else ""
    yield f"{proposal.name} = Stream("
    yield f'    name="{proposal.name}",'
    yield f'    topics=Topics(pattern=r"{pattern}"{start}),'
    yield f"    transform={to_camel(proposal.name)}(),"
    yield f"    integrity={proposal.integrity},"
    yield f'    description="Messages of {proposal.topic}, one row each.",'
    yield ")"


def render_test(name: str, rows: int, messages: str) -> str:
    """The file of a stream's test.

    Args:
        name: The stream.
        rows: Number of rows of its messages.
        messages: Name of the file of messages, in the folder of the test.
    """
    return f'''"""Messages of a topic are accepted by the stream {name}, in batches and after crashes, too."""

from __future__ import annotations

from pathlib import Path

from assets.{name} import {name}
from lockstep.testing import read_messages, run

MESSAGES = read_messages(Path(__file__).with_name("{messages}"))


def test_recorded_messages_become_rows() -> None:
    assert len(run({name}, *MESSAGES).or_raise().rows) == {rows}


def test_batches_crashes_and_restarts_change_nothing() -> None:
    assert run({name}, *MESSAGES) == run({name}, *MESSAGES, split=3)
'''
