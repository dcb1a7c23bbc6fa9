"""The token topic: one partition, compacted, a token for each target topic."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicPartition

from lockstep.declare.delivery import KafkaTopic
from lockstep.declare.delivery_target import DeliveryToken, TargetInterrupted, TargetRefused
from lockstep.kafka.admin import ClusterAdmin, PartitionOffsets
from lockstep.kafka.client import make_consumer, make_reader_configuration
from lockstep.model.decoding import decode_json
from lockstep.settings import KafkaSettings
from lockstep.time_limit import describe_silence

SETTLED_SECONDS = 90.0
"""A transaction of another delivery that is open blocks the token topic until the broker aborts it, after a minute."""
WINDOW = 500
WIDER = 20
"""Offsets from the end that are read first, and the factor of the next attempt."""
POLL_SECONDS = 0.2


class TokenTopic:
    """Reads the tokens of one target topic."""

    def __init__(self, delivery: str, target: KafkaTopic, admin: ClusterAdmin, settings: KafkaSettings) -> None:
        self._delivery = delivery
        self._target = target
        self._admin = admin
        self._settings = settings

    def read_settled(self) -> DeliveryToken | None:
        """Read the newest committed token, after all transactions that are open now have ended.

        Raises:
            TargetInterrupted: One of them does not end, or Kafka does not answer.
            TargetRefused: The token cannot be decoded.
        """
        return self._read(self._find_offsets(), SETTLED_SECONDS)

    def read_newest(self) -> DeliveryToken | None:
        """Read the newest token that a consumer may read now. Raises as `read_settled`."""
        found = self._find_offsets()
        readable = msgspec.structs.replace(found, high_watermark=found.stable_end)
        return self._read(readable, self._settings.timeout_seconds)

    def _find_offsets(self) -> PartitionOffsets:
        ends = self._admin.view([self._target.tokens]).ends
        if not ends:
            raise TargetInterrupted(self._delivery, f"topic {self._target.tokens} has no leader")
        return next(iter(ends.values()))

    def _read(self, offsets: PartitionOffsets, seconds: float) -> DeliveryToken | None:
        """Read backwards, in wider and wider windows, until the token is found."""
        end = offsets.high_watermark
        window = WINDOW
        while True:
            first = max(offsets.start, end - window)
            value = self._read_window(first, end, seconds)
            if value is not None:
                return self._decode(value)
            if first == offsets.start:
                return None
            window *= WIDER

    def _read_window(self, first: int, end: int, seconds: float) -> bytes | None:
        """The newest token from `first` to `end`."""
        if first >= end:
            return None
        consumer: Any = make_consumer(make_reader_configuration(self._settings))
        found: bytes | None = None
        deadline = time.monotonic() + seconds
        try:
            consumer.assign([TopicPartition(self._target.tokens, 0, first)])
            reached = first
            while reached < end:
                if time.monotonic() > deadline:
                    silence = describe_silence("the token topic", seconds, f"offsets {reached} to {end}")
                    open_hint = "a transaction of another delivery that is open hides later tokens"
                    raise TargetInterrupted(self._delivery, f"{silence}; {open_hint}")
                for message in consumer.consume(1_000, POLL_SECONDS):
                    error = message.error()
                    if error is not None and error.code() != ClientError._PARTITION_EOF:  # noqa: SLF001  # its name
                        raise TargetInterrupted(self._delivery, f"the token cannot be read: {error.str()}")
                    reached = max(reached, message.offset() + (error is None))
                    if error is None and message.key() == self._target.topic.encode():
                        found = message.value()
        except KafkaException as error:
            raise TargetInterrupted(self._delivery, f"the token cannot be read: {error.args[0].str()}") from error
        finally:
            consumer.close()
        return found

    def _decode(self, value: bytes) -> DeliveryToken:
        try:
            return decode_json(value, DeliveryToken)
        except msgspec.DecodeError as error:
            problem = f"its token in {self._target.tokens} cannot be decoded: {error}"
            step = "deliver with the release that wrote it; or to a new topic, from the first row on"
            raise TargetRefused(self._delivery, problem, next_step=step) from error
