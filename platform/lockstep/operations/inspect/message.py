"""Reads one unchanged message from Kafka or, if Kafka has deleted it, from the archive or the quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec

from lockstep.errors import LockstepError
from lockstep.integrity.resume_options import NOTHING_THERE, make_resume_command
from lockstep.model.finding import Finding
from lockstep.model.position import TopicNamePartition
from lockstep.model.record import KafkaMessage, read_headers
from lockstep.operations.quarantine import ExportRefused, NotInQuarantine, Place, describe_dropped, read_quarantined
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table.archive import find_message
from lockstep.table.layout import StreamFolders
from lockstep.table.quarantine import Header
from lockstep.verify.kafka_reader import KafkaTopicLog, WantedRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `lockstep.testing.read_messages` reads a file of these, one per line.

    Attributes:
        topic: Name of the topic.
        partition: Partition number.
        offset: Offset.
        found_in: "Kafka", "archive" or "quarantine".
        timestamp: Kafka's timestamp (UTC); None without one, or outside of the calendar.
        key: The key, as bytes.
        value: The value, as bytes; in quarantine cut at a megabyte.
        value_bytes: Size of the whole value.
        headers: The headers.
        finding: The finding by which it halted the stream; None otherwise.
    """

    topic: str
    partition: int
    offset: int
    found_in: str
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    value_bytes: int
    headers: list[Header]
    finding: Finding | None = None


class NoMessage(LockstepError):
    """No message at that offset; or none was named, and no message halts the stream.

    Attributes:
        stream: The stream.
        place: Topic, partition and offset; None if none was named.
    """

    def __init__(
        self,
        stream: str,
        place: Place | None,
        *,
        partitions: int = 0,
        halt: Sequence[Finding] = (),
        dropped: str = "",
    ) -> None:
        """Name the reason.

        Args:
            stream: The stream.
            place: Topic, partition and offset; None if none was named.
            partitions: Number of partitions of the topic in Kafka; 0 if unknown.
            halt: Findings of the halt, whose message was wanted.
            dropped: Messages that retention has dropped from the quarantine; empty for none.
        """
        problem = f"stream {stream} is not halted by a message"
        next_step = f"lockstep message {stream} TOPIC/PARTITION@OFFSET"
        if halt:
            problem = f"stream {stream} is halted by messages that are gone: {halt[0]}"
            next_step = make_resume_command(stream, tuple(halt))
        elif place is not None:
            where = f"{place.topic}/{place.partition}@{place.offset}"
            problem = f"neither Kafka nor archive or quarantine have a message at {where}"
            if dropped:
                problem += f"; retention has dropped the {dropped}"
            next_step = f"lockstep topics {stream}, or lockstep quarantine list {stream}, for the available messages"
            if place.partition >= partitions > 0:
                problem += f": topic {place.topic} has the partitions 0 to {partitions - 1}"
        super().__init__(problem, next_step=next_step)
        self.stream = stream
        self.place = place


def read_message(folders: StreamFolders, kafka: KafkaSettings, place: Place | None) -> StoredMessage:
    """The message at an offset, or the first message that halts the stream or a topic of it.

    Raises:
        NoTable: The stream has never run.
        NoMessage: There is none at that offset; or none is given, and no message halts the stream.
        KafkaError: Kafka does not answer.
    """
    findings = open_table(folders).base().head.all_findings
    halt = () if place is not None else findings
    place = place or _find_halting(folders.stream, findings)
    log = KafkaTopicLog(kafka)
    partitions = log.count_partitions(place.topic)
    message = None
    if place.partition < partitions:
        message = _in_kafka(log, place)
    # The archive first: it has the whole message, the quarantine may have cut its value.
    message = message or _in_archive(folders, place) or _in_quarantine(folders, place)
    if message is None:
        dropped = describe_dropped(folders)
        raise NoMessage(folders.stream, place, partitions=partitions, halt=halt, dropped=dropped)
    finding = next((each for each in findings if _place_of(each) == place), None)
    return msgspec.structs.replace(message, finding=finding)


def export_message(found: StoredMessage, file: Path) -> None:
    """Write a new file, never overwrite one: one line of JSON, bytes as base64.

    Raises:
        ExportRefused: The file exists, or cannot be written.
    """
    try:
        with file.open("xb") as out:
            out.write(msgspec.json.encode(found) + b"\n")
    except FileExistsError:
        raise ExportRefused(file, "it is there already") from None
    except OSError as error:
        raise ExportRefused(file, error.strerror or str(error)) from error


def _place_of(finding: Finding) -> Place:
    return Place(finding.topic, finding.partition, finding.offset)


def _find_halting(stream: str, findings: Sequence[Finding]) -> Place:
    """The first message that halts a stream, before offsets that have none."""
    at_offsets = [each for each in findings if each.until > each.offset]
    if not at_offsets:
        raise NoMessage(stream, None)
    return _place_of(min(at_offsets, key=lambda each: each.cause in NOTHING_THERE))


def _in_kafka(log: KafkaTopicLog, place: Place) -> StoredMessage | None:
    where = TopicNamePartition(place.topic, place.partition)
    available = log.read_ranges([where])[where]
    if not available.first <= place.offset < available.end:
        return None
    wanted = WantedRange(place.topic, place.partition, place.offset, place.offset + 1)
    messages = list[object]()
    for piece in log.read([wanted]):  # to its end, which closes the consumer
        messages += piece.messages
    if messages:
        return _of_client(place, cast("KafkaMessage", messages[0]), "Kafka")
    return None


def _in_archive(folders: StreamFolders, place: Place) -> StoredMessage | None:
    message = find_message(folders.archive, place.topic, place.partition, place.offset)
    if message is None:
        return None
    return _of_client(place, message, "archive")


def _of_client(place: Place, found: KafkaMessage, found_in: str) -> StoredMessage:
    value = found.value()
    kind, timestamp_ms = found.timestamp()
    timestamp = None
    if kind:  # 0: the message has no timestamp
        timestamp = _time(timestamp_ms)
    return StoredMessage(
        topic=place.topic,
        partition=place.partition,
        offset=place.offset,
        found_in=found_in,
        timestamp=timestamp,
        key=found.key(),
        value=value,
        value_bytes=len(value or b""),
        headers=[Header(name, content) for name, content in read_headers(found)],
    )


def _time(timestamp_ms: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def _in_quarantine(folders: StreamFolders, place: Place) -> StoredMessage | None:
    try:
        row = read_quarantined(folders, place)[-1]
    except NotInQuarantine:
        return None
    fields = {name: getattr(row, name) for name in StoredMessage.__struct_fields__ if hasattr(row, name)}
    return StoredMessage(**fields, found_in="quarantine")
