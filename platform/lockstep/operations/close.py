"""Closes the open hour of a stream, so that it can be compacted before the clock would allow it.

Beside a live writer this is harmless but not free: a batch under way for the hour loses to the close
and is planned again for the hour after. On a stream that runs on, rows then stand under an hour that
has not come yet, until the clock has caught up.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from lockstep.errors import LockstepError, TableError
from lockstep.operations.opened import opened
from lockstep.table import demands
from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders

_HOUR: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}")


def close_hour(folders: StreamFolders, hour: str | None = None) -> str:
    """Close an hour and all before it: no batch can be committed into them any more.

    Args:
        folders: Where the stream lies.
        hour: "YYYY-MM-DDTHH" in UTC; the hour of the newest batch when left out.

    Returns:
        The hour that is closed now. Closing a closed hour changes nothing and commits nothing.

    Raises:
        NoTable: The stream has never run.
        LockstepError: There is no batch yet, or the hour is no hour, or has not begun.
        TableError: The table is not as its head says.
    """
    output = opened(folders)
    head = output.base().head
    wanted = _checked(hour or head.hour, head)
    if wanted > head.closed_hour and wanted >= head.hour:
        output.commit(demands.close(wanted))
    return wanted


def _checked(hour: str, head: Head) -> str:
    if not head.hour:
        raise LockstepError(
            f"stream {head.stream} has no batch yet, no hour is open", next_step=f"lockstep run {head.stream}"
        )
    if not _is_hour(hour):
        raise LockstepError(
            f"{hour!r} is not an hour", next_step=f"write YYYY-MM-DDTHH in UTC, for example {head.hour}"
        )
    if hour > head.hour:
        raise TableError(
            f"hour {hour} has not begun: the newest batch of {head.stream} is in hour {head.hour}",
            next_step=f"close {head.hour} at most: a later hour would only push rows further ahead of the clock",
        )
    return hour


def _is_hour(text: str) -> bool:
    if not _HOUR.fullmatch(text):
        return False
    try:
        datetime.strptime(text, "%Y-%m-%dT%H")  # noqa: DTZ007  # only whether it is one
    except ValueError:
        return False
    return True
