"""Delivery to a webhook, at least once: rows are sent first, the token is written to the table root afterwards.

A process that is killed in between sends the rows after the token again, with their ids. Rows that were accepted before
a failure of the same write are in the token, and are not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from lockstep.declare.delivery_target import (
    DeliveredRow,
    DeliveryToken,
    RowUndeliverable,
    TargetConnection,
    TargetInterrupted,
    TargetRefused,
)
from lockstep.declare.webhook import Webhook
from lockstep.errors import LockstepError, SettingsError
from lockstep.features.delivery.changeable_target import ChangeableTarget
from lockstep.features.delivery.claim_files import ClaimFiles
from lockstep.features.delivery.erasures import ErasedSession
from lockstep.features.delivery.webhook_request import (
    RETRY_AFTER_SECONDS_MAX,
    AnswerMeaning,
    WebhookBody,
    WebhookEncoding,
    decode_retry_after,
    encode_row,
    judge_status,
    make_request_key,
    make_row_id,
    split_rows,
)
from lockstep.http_request import SCHEMES, RequestOutcome, send_json
from lockstep.kafka.secrets import fetch_secret
from lockstep.model.decoding import decode_json


class WebhookState(msgspec.Struct, frozen=True):
    """The state of a webhook that a token has.

    Attributes:
        accepted: Ids of rows after the position that the receiver has accepted.
        not_before: The next request is not sent before this time (UTC), which the receiver asked for; None for any.
    """

    accepted: tuple[str, ...] = ()
    not_before: datetime | None = None


def fetch_address(delivery: str, target: Webhook) -> str:
    """The address of the receiver, a secret.

    Raises:
        TargetRefused: There is none, or it is not an address of http:// or https://.
    """
    address = _fetch(delivery, "url", target.url)
    if not address.startswith(SCHEMES):
        problem = f"Webhook.url refers to {target.url}, which has no http:// or https:// address"
        raise TargetRefused(delivery, problem, next_step="store the receiver's address there: https://...")
    return address


def fetch_headers(delivery: str, target: Webhook) -> dict[str, str]:
    """The headers of all requests, with the secret of the receiver. Raises TargetRefused without the secret."""
    headers = {"User-Agent": "lockstep"}
    if target.authorization:
        headers["Authorization"] = _fetch(delivery, "authorization", target.authorization)
    return headers


def _fetch(delivery: str, field: str, reference: str) -> str:
    try:
        secret = fetch_secret(f"Webhook.{field}", reference)
    except SettingsError as error:
        raise TargetRefused(delivery, error.problem, next_step=error.next_step) from error
    if not secret.isascii():
        problem = f"Webhook.{field} refers to {reference}, which has other characters than ASCII"
        raise TargetRefused(delivery, problem, next_step="store it as a request has it, percent-encoded")
    return secret


class WebhookConnection(ChangeableTarget):
    """A claimed webhook: the claim is in the table root."""

    def __init__(self, delivery: str, stream: str, target: Webhook, root: Path) -> None:
        """Claim the position; nothing is sent.

        Args:
            delivery: Name of the delivery.
            stream: Name of its stream.
            target: The receiver.
            root: The table root.

        Raises:
            DeliveryFenced: Another run claims it at the same moment.
            TargetRefused: The address or the position cannot be used.
            TargetInterrupted: The receiver asked for a pause, which has not ended.
        """
        self._delivery = delivery
        self._stream = stream
        self._target = target
        self._address = fetch_address(delivery, target)
        self._headers = fetch_headers(delivery, target)
        self._claim = ClaimFiles(root, delivery)
        token = self._claim.token
        self._state = WebhookState() if token is None else self._decode_state(token)
        self._accepted = set(self._state.accepted)
        self._require_pause_over()

    @property
    def token(self) -> DeliveryToken | None:
        """The newest token."""
        return self._claim.token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Send rows, then write the token. Raises as `TargetConnection.write`; rows may have been accepted then."""
        try:
            self._send_rows(rows, token.table_id)
        except LockstepError:
            self._keep_accepted()
            raise
        if rows and token.last is None:  # the end of a step: those that are left were undone or erased
            self._accepted.clear()
        self._save(token, WebhookState(tuple(sorted(self._accepted))))

    def _send_rows(self, rows: Sequence[DeliveredRow], table_id: str) -> None:
        """Send the rows that were not accepted."""
        ids = [make_row_id(table_id, row) for row in rows]
        left = [row for row, name in zip(rows, ids, strict=True) if name not in self._accepted]
        encoded = [encode_row(table_id, row, self._target) for row in left]
        for request in split_rows(encoded, self._target):
            self._send(request)
        self._accepted.difference_update(ids)

    def erase(self, sessions: Sequence[ErasedSession], token: DeliveryToken) -> None:
        """Delete nothing: the receiver has the rows."""

    def retract(self, valid: Mapping[int, int], token: DeliveryToken) -> None:
        """Delete nothing, as `erase`."""

    @contextmanager
    def rebuild(self, token: DeliveryToken) -> Iterator[TargetConnection]:
        """Send all rows again. The position is written at the end, so a rebuild that is killed is repeated."""
        accepted = self._accepted
        self._accepted = set()
        writer = _RebuildWriter(token, self._send_rows)
        try:
            yield writer
        except LockstepError:
            self._accepted |= accepted
            self._keep_accepted()
            raise
        self._accepted = set()
        self._save(writer.token, WebhookState())

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, rows: Sequence[WebhookEncoding]) -> None:
        """Send rows in one request; halve a request that is refused for a row, until the row is alone."""
        self._claim.require_newest()
        answer = self._post(rows)
        meaning = judge_status(answer.status, is_of_proxy=answer.is_of_proxy)
        if meaning is AnswerMeaning.ACCEPTED:
            self._accepted.update(row.id for row in rows)
        elif meaning is AnswerMeaning.REFUSED:
            raise self._make_refused(answer)
        elif meaning is AnswerMeaning.RETRY:
            raise self._make_interrupted(answer)
        elif len(rows) == 1:
            step = f"let the receiver accept it, or Delivery.where leave it out; then lockstep deliver {self._delivery}"
            raise RowUndeliverable(rows[0].identity, f"the webhook refuses it: {answer.problem}", next_step=step)
        else:
            middle = len(rows) // 2
            self._send(rows[:middle])
            self._send(rows[middle:])

    def _post(self, rows: Sequence[WebhookEncoding]) -> RequestOutcome:
        body = WebhookBody(self._delivery, self._stream, [row.encoded for row in rows])
        headers = self._headers | {
            "Idempotency-Key": f'"{make_request_key(rows)}"'
        }  # quoted, as the IETF's draft has it
        return send_json(self._address, msgspec.json.encode(body), self._target.timeout_seconds, headers)

    def _make_refused(self, answer: RequestOutcome) -> TargetRefused:
        known = " and ".join(filter(None, (self._target.url, self._target.authorization)))
        if answer.is_of_proxy:
            known = "the proxy of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), with its user and password"
        step = f"correct {known}; then lockstep deliver {self._delivery}"
        problem = f"the webhook cannot be used: {answer.problem}"
        if answer.status < 400:  # noqa: PLR2004  # the redirects of HTTP
            problem = f"{problem}, a redirect, which is not followed"
        return TargetRefused(self._delivery, problem, next_step=step)

    def _make_interrupted(self, answer: RequestOutcome) -> TargetInterrupted:
        now = datetime.now(UTC)
        seconds = decode_retry_after(answer.retry_after, now)
        if seconds:
            self._state = msgspec.structs.replace(self._state, not_before=now + timedelta(seconds=seconds))
        return TargetInterrupted(self._delivery, f"webhook: {answer.problem}", retry_seconds=seconds)

    def _require_pause_over(self) -> None:
        if self._state.not_before is None:
            return
        left = (self._state.not_before - datetime.now(UTC)).total_seconds()
        if left > 0:
            seconds = min(left, RETRY_AFTER_SECONDS_MAX)  # a clock that was set back
            problem = f"webhook: it asked for a pause, which ends in {seconds:.0f} s"
            raise TargetInterrupted(self._delivery, problem, retry_seconds=seconds)

    def _keep_accepted(self) -> None:
        """Write the accepted rows, and the pause that the receiver asked for, with the position before them."""
        token = self._claim.token
        state = msgspec.structs.replace(self._state, accepted=tuple(sorted(self._accepted)))
        if token is not None and state != self._decode_state(token):
            self._save(token, state)

    def _save(self, token: DeliveryToken, state: WebhookState) -> None:
        encoded = msgspec.json.encode(state).decode()
        self._claim.write(msgspec.structs.replace(token, epoch=self._claim.number, target_state=encoded))
        self._state = state

    def _decode_state(self, token: DeliveryToken) -> WebhookState:
        return decode_json(token.target_state, WebhookState)


class _RebuildWriter(TargetConnection):
    """Sends the rows of a rebuild; its token is written at the end."""

    def __init__(self, token: DeliveryToken, send: Callable[[Sequence[DeliveredRow], str], None]) -> None:
        self._token = token
        self._send = send

    @property
    def token(self) -> DeliveryToken:
        """The token of the newest write."""
        return self._token

    def write(self, rows: Sequence[DeliveredRow], token: DeliveryToken) -> None:
        """Send rows. Raises as `TargetConnection.write`."""
        self._send(rows, token.table_id)
        self._token = token

    def close(self) -> None:
        """Nothing is open."""
