"""The result of the last `lockstep verify` of a stream, for commands that only read."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from lockstep.model.decoding import decode_json
from lockstep.storage import find_storage
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus, VerifyReport

FILE = "proof.json"


class LastProof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a proof.

    Attributes:
        at: Time of its end, in seconds since 1970 (UTC).
        status: "proven", "violated", "not proven" or "states lost".
        batch: The newest batch that it covers.
        version: The version of the table.
        violations: Number of violations.
    """

    at: float
    status: str
    batch: int
    version: int
    violations: int

    @property
    def is_broken(self) -> bool:
        """Whether it found a violation."""
        return self.status == InvariantStatus.VIOLATED.value


def keep_proof(folders: StreamFolders, report: VerifyReport) -> None:
    """Keep the result of a proof; a disk that is full keeps the one before."""
    proof = LastProof(
        at=time.time(),
        status=report.status.value,
        batch=report.batch,
        version=report.version,
        violations=report.violation_count,
    )
    path = folders.control / FILE
    with suppress(OSError):  # the proof itself is the result; nothing waits for this file
        find_storage(path).replace(path, msgspec.json.encode(proof))


def read_last_proof(folders: StreamFolders) -> LastProof | None:
    """The result of the last proof; None without a readable one."""
    path = folders.control / FILE
    try:
        return decode_json(find_storage(path).read(path), LastProof)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
