"""Operator stop requests: a file that asks the active writer to commit the new desired state and to end.

The file is named after the epoch it addresses, so that it can never stop a later run. It changes nothing by
itself: the desired state of a stream is in the head of its table.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.engine.liveness import publish, stop_request
from lockstep.table import demands
from lockstep.table.commit import OutputLog
from lockstep.table.head import Desired, Head


class StopRequest(msgspec.Struct, frozen=True):
    """What an operator wants.

    Attributes:
        reason: Why, in a few words.
        who: Who asked.
        desired: The desired state from now on: stopped or held.
    """

    reason: str
    who: str
    desired: Desired = Desired.STOPPED

    def __str__(self) -> str:
        return f"{self.reason} ({self.who})"


def ask_to_stop(control: Path, epoch: int, request: StopRequest) -> None:
    """Ask the writer of an epoch to commit the desired state, and to end."""
    publish(stop_request(control, epoch), msgspec.json.encode(request))


def asked_to_stop(control: Path, epoch: int) -> StopRequest | None:
    """What the writer of an epoch was asked for; costs one failing open() while there is nothing."""
    try:
        return msgspec.json.decode(stop_request(control, epoch).read_bytes(), type=StopRequest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        return StopRequest(f"a stop request that cannot be read: {error}", "unknown")


def commit_stop(output: OutputLog, writer: demands.Writer, request: StopRequest) -> Head:
    """Commit, as the writer, the desired state that was requested.

    Raises:
        Fenced: A newer writer holds the table; the request was not addressed to it.
    """
    return output.commit(demands.desire(writer, request.desired, str(request))).head
