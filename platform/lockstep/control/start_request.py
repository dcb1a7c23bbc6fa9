"""The request of an operator that a stream runs, before a claim can record it as the desired state.

A stream without a table has no head, and the claim of a run replaces that of a bounded writer. A run that fails before
its claim would take the request with it. So `lockstep start` writes it to a file first. The supervisor reads the file,
and starts the stream until a run has claimed, or an operator has stopped the stream.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders


class StartRequest(msgspec.Struct, frozen=True):
    """The request.

    Attributes:
        cause: Cause and operator.
        desired_version: `Head.desired_version` at that time; 0 without a table. A newer stop, hold or start supersedes
            the request.
        request_id: Identifies it.
    """

    cause: str
    desired_version: int
    request_id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)

    def holds(self, head: Head | None) -> bool:
        """Whether nothing has fulfilled or superseded it."""
        if head is None:
            return self.desired_version == 0
        waits = head.desired is Desired.BOUNDED or head.epoch == 0
        return waits and head.desired_version == self.desired_version


def record_start_request(folders: StreamFolders, cause: str, desired_version: int) -> StartRequest:
    """Record the request; a repeated request of one version changes nothing. Makes a new table root, as a run does."""
    before = _read(folders.control)
    if before is not None and before.desired_version == desired_version:
        return before
    request = StartRequest(cause, desired_version)
    find_storage(folders.control).replace(_path(folders.control), msgspec.json.encode(request))
    return request


def read_start_request(folders: StreamFolders, head: Head | None) -> StartRequest | None:
    """The request, if the head does not supersede it."""
    request = _read(folders.control)
    return request if request is not None and request.holds(head) else None


def forget_start_request(folders: StreamFolders) -> bool:
    """Remove the request. Returns whether it existed."""
    was_there = _read(folders.control) is not None
    find_storage(folders.control).delete(_path(folders.control))
    return was_there


def _read(control: Path) -> StartRequest | None:
    try:
        return decode_json(find_storage(control).read(_path(control)), StartRequest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _path(control: Path) -> Path:
    return control / "wanted.json"
