"""Proposes a stream for the messages of a topic: the strongest promise that they keep, tried by the engine's fold."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, dropwhile, groupby
from pathlib import Path as FilePath
from typing import Any
from uuid import uuid4

import msgspec

from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.inference.evidence import (
    MessageMark,
    Order,
    Path,
    SampledMessage,
    find_checksum,
    find_event_time,
    find_late_snapshot,
    find_orders,
    find_rising,
    find_snapshot,
    split_sessions,
)
from lockstep.features.inference.message_types import Inferred, TypeBuilder, find_tag
from lockstep.features.inference.readers import find_type, show_path
from lockstep.features.inference.sample import NothingToInfer, Sample
from lockstep.features.inference.shapes import Shape
from lockstep.features.inference.source import StreamProposal, find_tagged, render_stream, render_test
from lockstep.integrity.verdict import Judgement
from lockstep.testing import SentMessage, run

TEST_MESSAGES_MAX = 20
TEST_BYTES_MAX = 200_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ProposedStream:
    """A stream that accepts the sampled messages.

    Attributes:
        proposal: The content of its file.
        stream: The text of its file.
        test: The text of its test.
        messages: The text of the file of messages of the test.
        rows: Number of rows of these messages.
    """

    proposal: StreamProposal
    stream: str
    test: str
    messages: str
    rows: int


@dataclass(frozen=True)
class _Sessions:
    """Messages by session.

    Attributes:
        place: Place of the session; None for the key, "partition" for one session a partition.
        groups: The messages from the first snapshot of each session on.
        snapshot: The kind of snapshots.
        orders: The orders that hold.
        skipped: Number of messages before the first snapshots.
    """

    place: Path | str | None
    groups: list[list[SampledMessage]]
    snapshot: MessageMark | None
    orders: list[Order]
    skipped: int


def build_proposal(name: str, sample: Sample) -> ProposedStream:
    """Infer types, session, snapshots and order, and take the first candidate that accepts every message.

    Args:
        name: The stream.
        sample: The messages.

    Raises:
        NothingToInfer: No candidate accepts them.
    """
    builder = TypeBuilder()
    message = _infer_message(builder, sample)
    base = StreamProposal(
        name=name,
        topic=sample.topic,
        sampled=len(sample.messages),
        message=message,
        records=tuple(builder.records),
        session=None,
        snapshot=None,
        order=Order("log"),
        event_time=find_event_time(sample.messages, lambda path: find_type(message, path) is not None),
        integrity="",
    )
    refused = ""
    # The engine decides: only its fold knows whether a promise holds.
    for candidate, messages in _list_candidates(base, sample):
        try:
            with load_text(render_stream(candidate), name) as stream:
                refusal = _find_refusal(stream, messages)
                if not refusal:
                    questions = _list_questions(candidate, sample, refused)
                    return _finish(replace(candidate, questions=questions), stream, messages)
        except LockstepError as error:
            refusal = error.problem
        # The refusal of the strongest promise is what the questions name.
        refused = refused or refusal
    raise NothingToInfer(sample.topic, refused)


def _infer_message(builder: TypeBuilder, sample: Sample) -> Inferred:
    shape = Shape()
    values = [message.decoded for message in sample.messages]
    for value in values:
        shape.add(value)
    tag = find_tag(shape, values)
    if not tag:
        return builder.build_message(shape)
    shapes: dict[str | int, Shape] = {}
    for value in values:
        if isinstance(value, dict):
            shapes.setdefault(value[tag], Shape()).add(value)
    return builder.build_tagged(tuple(shapes.items()), tag)


def _list_candidates(base: StreamProposal, sample: Sample) -> Iterator[tuple[StreamProposal, list[SampledMessage]]]:
    """Proposals from the strongest promise to none, each with the messages that it is to accept."""
    all_sessions = list(_list_sessions(base.message, sample.messages))
    for kind in ("sequence", "linked", "window", "log"):
        # The order of the log holds for sessions of any kind: the first are the most usual.
        candidates = all_sessions[:1] if kind == "log" else all_sessions
        for sessions in candidates:
            for order in sessions.orders:
                paths = (order.number, order.first, order.previous, order.opening)
                if order.kind == kind and all(_leads_to(base.message, path) for path in paths):
                    messages = list(chain.from_iterable(sessions.groups))
                    messages.sort(key=lambda message: (message.partition, message.offset))
                    yield _complete(base, sessions, order, sample), messages
    yield replace(base, session="partition", integrity="NoIntegrity()"), list(sample.messages)


def _complete(base: StreamProposal, sessions: _Sessions, order: Order, sample: Sample) -> StreamProposal:
    snapshot = sessions.snapshot
    starts_at_snapshot = snapshot is not None and (sessions.skipped > 0 or not sample.is_from_start)
    return replace(
        base,
        session=sessions.place,
        snapshot=snapshot,
        order=order,
        integrity=_render_integrity(order, snapshot),
        starts_at_snapshot=starts_at_snapshot,
    )


def _render_integrity(order: Order, snapshot: MessageMark | None) -> str:
    start = ", session_start=SessionStart.FIRST_MESSAGE" if snapshot is None else ""
    if order.kind == "window":
        return f"FuzzyWindow(lateness=timedelta(seconds=10), reorder=True{start})"
    evidence = {"sequence": "Sequence", "linked": "Linked", "log": "LogOnly"}[order.kind]
    return f"Strict(evidence={evidence}(){start})"


def _is_typed(message: Inferred, snapshot: MessageMark) -> bool:
    """Whether the types of messages lead to the mark of snapshots, and keep its value as it is in JSON."""
    if find_tagged(message, snapshot) is not None:
        return True
    place = find_type(message, snapshot.path)
    if place is None or not isinstance(snapshot.value, str):
        return place is not None
    return any(kind.text == "str" for kind in place.kinds)  # a time or a Decimal is not equal to its text


def _leads_to(message: Inferred, place: Path | str | None) -> bool:
    return not isinstance(place, tuple) or find_type(message, place) is not None


def _list_sessions(message: Inferred, messages: Sequence[SampledMessage]) -> Iterator[_Sessions]:
    """Sessions by the key, by each field that could name them, and by partition."""
    by_key = split_sessions(messages, None)
    if by_key is not None:
        yield _examine(message, None, by_key)
    partitions = groupby(messages, key=lambda message: message.partition)
    yield _examine(message, "partition", [list(group) for _, group in partitions])
    # A field that some message lacks is no session, so the first message names all candidates.
    for place in sorted({path for path in messages[0].scalars if len(path) == 1}, key=str):
        groups = split_sessions(messages, place)
        if groups is not None and _leads_to(message, place) and 1 < len(groups) <= len(messages) // 2:
            yield _examine(message, place, groups)


def _examine(message: Inferred, place: Path | str | None, groups: list[list[SampledMessage]]) -> _Sessions:
    snapshot = find_snapshot(groups)
    started = groups
    if snapshot is None:
        snapshot = find_late_snapshot(groups)
    if snapshot is not None and not _is_typed(message, snapshot):
        snapshot = None
    if snapshot is not None:
        # A session without a snapshot in the sample has nothing to start from.
        from_snapshot = [list(dropwhile(lambda message: not snapshot.holds(message), group)) for group in groups]
        started = [group for group in from_snapshot if group]
    skipped = sum(map(len, groups)) - sum(map(len, started))
    return _Sessions(place, started, snapshot, find_orders(started, snapshot), skipped)


@contextmanager
def load_text(text: str, name: str) -> Iterator[AnyStream]:
    """Import the text of a stream as a module, while the block lasts; returns the stream.

    Raises:
        LockstepError: The declaration is refused.
    """
    module_name = f"lockstep_proposal_{uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="lockstep-new-") as folder:
        file = FilePath(folder) / f"{module_name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(module_name, file)
        if spec is None or spec.loader is None:
            raise ImportError(file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # msgspec resolves annotations there
        try:
            spec.loader.exec_module(module)
            yield getattr(module, name)
        finally:
            del sys.modules[module_name]


def _find_refusal(stream: AnyStream, messages: Sequence[SampledMessage]) -> str:
    """The first verdict other than acceptance; empty if there is none."""
    for partition, group in groupby(messages, key=lambda message: message.partition):
        sent = list(group)
        ran = run(stream, *map(_to_sent, sent))
        for folded in ran.folded:
            verdict = folded.verdict
            if verdict.judgement not in {Judgement.ACCEPT, Judgement.BUFFER}:
                where = f"partition {partition}, offset {sent[folded.offset].offset}"
                return f"{verdict.cause} at {where}: expected {verdict.expected}, found {verdict.found}"
        if ran.finding is not None or ran.quarantine or ran.late:
            return f"not all messages of partition {partition} are accepted"
    return ""


def _to_sent(message: SampledMessage) -> SentMessage[Any]:
    return SentMessage(value=message.value, key=message.key, timestamp_ms=max(0, message.timestamp_ms))


def _finish(proposal: StreamProposal, stream: AnyStream, messages: Sequence[SampledMessage]) -> ProposedStream:
    """The files, with the first messages of the longest session for the test."""
    partition = Counter(message.partition for message in messages).most_common(1)[0][0]
    chosen: list[SampledMessage] = []
    size = 0
    for message in messages:
        if message.partition == partition and (not chosen or len(chosen) < TEST_MESSAGES_MAX):
            size += len(message.value)
            # A test of one large message is better than none.
            if chosen and size > TEST_BYTES_MAX:
                break
            chosen.append(message)
    rows = len(run(stream, *map(_to_sent, chosen)).rows)
    file = f"{proposal.name}.jsonl"
    lines = [msgspec.json.encode(_to_line(message)).decode() for message in chosen]
    test = render_test(proposal.name, rows, file)
    return ProposedStream(proposal, render_stream(proposal), test, "".join(f"{line}\n" for line in lines), rows)


def _to_line(message: SampledMessage) -> dict[str, object]:
    """A message in the form that `lockstep.testing.read_messages` reads."""
    timestamp = EPOCH + timedelta(milliseconds=max(0, message.timestamp_ms))
    return {"key": message.key, "value": message.value, "timestamp": timestamp}


def _list_questions(proposal: StreamProposal, sample: Sample, refused: str) -> tuple[str, ...]:
    """Questions that the messages do not answer."""
    return (
        "Do other topics hold such messages? Then widen the pattern of the topics.",
        *_ask_about_sessions(proposal),
        *_ask_about_order(proposal, sample, refused),
        *_ask_about_bad_messages(sample),
        f"May messages of this topic be stored in your repository? tests/{proposal.name}.jsonl has the first ones.",
    )


def _ask_about_sessions(proposal: StreamProposal) -> Iterator[str]:
    if proposal.session == "partition":
        yield "What is a session? Some messages have no key, so that each partition is one."
    elif isinstance(proposal.session, tuple):
        yield f"Is `{show_path(proposal.session)}` the session? Numbers rise by one in it, and not by key."
    if proposal.snapshot is None:
        yield "Is there a message that sets the whole state of a session? None was found: each stands for itself."
        return
    mark = f"`{show_path(proposal.snapshot.path)}`"
    if isinstance(proposal.snapshot.value, str):
        mark += f" of {show_path((proposal.snapshot.value,))}"
    yield f"Does a message with {mark} set the whole state of its session? It was taken for a snapshot."
    if proposal.starts_at_snapshot:
        yield "Are older messages gone? Messages before the first snapshot of a session are skipped."


def _ask_about_order(proposal: StreamProposal, sample: Sample, refused: str) -> Iterator[str]:
    if proposal.order.kind == "window":
        yield "How late may a message be? Numbers are complete and out of order; the bound is a guess."
    if proposal.order.kind != "log":
        return
    if proposal.integrity == "NoIntegrity()":
        yield f"Which promise holds? `Strict` refuses: {show_path((refused,))}"
        return
    groups = split_sessions(sample.messages, None) or [list(sample.messages)]
    checksum = find_checksum(sample.messages)
    rising = find_rising(groups)
    if checksum is not None:
        yield (
            f"Is `{show_path(checksum)}` a checksum of the state? Then compute it in on_update, raise Violation, and "
            "declare Strict(evidence=Checksum())."
        )
    elif rising is not None:
        yield f"Does `{show_path(rising)}` prove the order? It rises with gaps: Ordered() would count, not refuse them."
    yield "Which field proves that the producer sent every message? None was found: only Kafka's log is proven."


def _ask_about_bad_messages(sample: Sample) -> Iterator[str]:
    for found, what in ((sample.garbage, "are no JSON"), (sample.tombstones, "have no value")):
        if found:
            partition, offset = found[0]
            yield (
                f"Why do {len(found)} messages {what}, the first in partition {partition} at offset {offset}? "
                "Under Strict the stream halts there."
            )
