"""The requests of a delivery to a webhook: body, ids of rows, and the meaning of an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from lockstep.declare.delivery_target import DeliveredRow, RowIdentity, RowUndeliverable
from lockstep.declare.webhook import Webhook

RETRY_AFTER_SECONDS_MAX = 300.0
"""A receiver that asks for more is tried again after this time: a wrong header must not stop a delivery."""
_RETRIED = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,  # the first of two equal requests is still in progress
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)
_OF_ADDRESS = (
    *(HTTPStatus.UNAUTHORIZED, HTTPStatus.PAYMENT_REQUIRED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND),
    *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, HTTPStatus.GONE),
)
"""Answers about the address and the rights: no row causes them, so none becomes a dead letter by them."""


class AnswerMeaning(Enum):
    """The meaning of an answer for the rows of a request."""

    ACCEPTED = "accepted"
    RETRY = "retry"
    REFUSED = "refused"
    """The receiver cannot be used."""
    ROWS = "rows"
    """The receiver refuses a row."""


class WebhookRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row in the body of a request.

    Attributes:
        id: `<table id>/<generation>/<topic id>/<partition>/<emit offset>/<row>`: equal for each repetition of the row.
        batch: The batch that committed it.
        topic: Source topic.
        session: Its session.
        event_time: Event time of the message (UTC); null without one.
        value: The row, or the result of `Delivery.select`.
    """

    id: str
    batch: int
    topic: str
    session: str
    event_time: datetime | None
    value: msgspec.Struct


class WebhookBody(msgspec.Struct, frozen=True):
    """The body of a request.

    Attributes:
        delivery: Name of the delivery.
        stream: Name of its stream.
        rows: The rows (`WebhookRow`), encoded.
    """

    delivery: str
    stream: str
    rows: list[msgspec.Raw]


class WebhookEncoding(NamedTuple):
    """A row as it is sent.

    Attributes:
        id: Its id.
        identity: Its identity, for errors.
        encoded: Its JSON.
    """

    id: str
    identity: RowIdentity
    encoded: msgspec.Raw


def make_row_id(table_id: str, row: DeliveredRow) -> str:
    """The id of a row."""
    return f"{table_id}/{row.origin.generation}/{row.origin.identity}"


def encode_row(table_id: str, row: DeliveredRow, target: Webhook) -> WebhookEncoding:
    """Encode a row. Raises RowUndeliverable if JSON cannot hold it, or a request cannot."""
    origin = row.origin
    sent = WebhookRow(
        id=make_row_id(table_id, row),
        batch=origin.batch,
        topic=origin.topic,
        session=origin.session,
        event_time=origin.event_time,
        value=row.value,
    )
    step = "let Delivery.select make a smaller value that JSON can hold, or Delivery.where leave the row out"
    try:
        encoded = msgspec.json.encode(sent)
    except (TypeError, ValueError) as error:
        raise RowUndeliverable(origin.identity, f"JSON cannot hold it: {error}", next_step=step) from error
    if len(encoded) > target.request_bytes:
        problem = f"it has {len(encoded):,} bytes, and Webhook.request_bytes is {target.request_bytes:,}"
        raise RowUndeliverable(origin.identity, problem, next_step=step)
    return WebhookEncoding(sent.id, origin.identity, msgspec.Raw(encoded))


def split_rows(rows: Sequence[WebhookEncoding], target: Webhook) -> Iterator[Sequence[WebhookEncoding]]:
    """Split rows into requests of so many rows and bytes, at most; the rest of a body has some 100 bytes more."""
    start = 0
    size = 0
    for at, row in enumerate(rows):
        length = len(bytes(row.encoded))
        if at > start and (at - start >= target.request_rows or size + length > target.request_bytes):
            yield rows[start:at]
            start = at
            size = 0
        size += length
    if start < len(rows):
        yield rows[start:]


def make_request_key(rows: Sequence[WebhookEncoding]) -> str:
    """The idempotency key of a request: equal for requests with the same rows."""
    return hashlib.sha256("\n".join(row.id for row in rows).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def judge_status(status: int, *, is_of_proxy: bool = False) -> AnswerMeaning:
    """The meaning of the status of an answer; 0 is that of no answer. A proxy refuses the address, and never a row."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return AnswerMeaning.ACCEPTED
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST or status in _OF_ADDRESS:
        return AnswerMeaning.REFUSED
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _RETRIED:
        return AnswerMeaning.REFUSED if is_of_proxy else AnswerMeaning.ROWS
    return AnswerMeaning.RETRY


def decode_retry_after(header: str, now: datetime) -> float:
    """The seconds that a receiver asks for, at most `RETRY_AFTER_SECONDS_MAX`; 0 for none, or an unreadable header.

    Args:
        header: Seconds, or a date of HTTP.
        now: Time (UTC).
    """
    if header.isascii() and header.isdigit():
        return min(float(header[:9]), RETRY_AFTER_SECONDS_MAX)
    try:
        at = parsedate_to_datetime(header)
        seconds = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    return max(0.0, min(seconds, RETRY_AFTER_SECONDS_MAX))
