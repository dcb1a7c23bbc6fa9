"""Which message an error of the user's code is about, and whether there is one that could be put aside."""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path
from traceback import TracebackException

import msgspec
from msgspec.structs import replace

import lockstep
from lockstep.declare.record import Record
from lockstep.engine.applying import Applying
from lockstep.engine.emission import Emission
from lockstep.engine.judging import Judging, key_text
from lockstep.engine.program import Program
from lockstep.errors import Violation
from lockstep.integrity.contract import Fault
from lockstep.integrity.finding import Finding
from lockstep.integrity.verdict import Judgement
from lockstep.table.rows import RowRefused

TRACEBACK_MAX = 4_000
"""Characters of a traceback in the commit that halts the stream."""
_LOCKSTEP = str(Path(lockstep.__file__).parent)


class Blame(msgspec.Struct, frozen=True):
    """Who is to blame for an error.

    Attributes:
        offset: Offset of the message that raised, or gave the row.
        at: The offset that was being worked on.
        session: Its session, where that can be told.
        of_timer: It was a timer: there is no message that could be put aside.
        held: The message was held back before.
    """

    offset: int
    at: int
    session: str | None
    of_timer: bool = False
    held: bool = False


def note_error(error: Exception, worked: Record | None, applying: Applying, emission: Emission, judge: Judging) -> None:
    """Note an error of the user's code: a violation, or a message to be left out when the range is folded again."""
    blame = _of_row(error, emission) if isinstance(error, RowRefused) else _of_message(worked, applying)
    found = _told(error, judge.finding("timer raised" if blame.of_timer else "transform raised", blame.offset))
    found = replace(found, session=blame.session)
    if blame.of_timer or judge.answer(Fault.RAISED, blame.offset) is Judgement.VIOLATION:
        source = "" if blame.at == blame.offset else f"; by the message at offset {blame.offset}"
        judge.stopped = replace(found, offset=blame.at, until=blame.at + 1, detail=found.detail + source)
    else:
        judge.refused, judge.refused_held = found, blame.held


def session_of(program: Program, record: Record) -> str | None:
    """The session of a message, as far as it can be told."""
    try:
        return program.place(program.decode(record.value or b""), record).session
    except Exception:  # noqa: BLE001  # the user's `place` is what raised
        return key_text(record)


def _of_row(error: RowRefused, emission: Emission) -> Blame:
    (offset, _, session, _, _, at), of_timer = emission.proof_at(error.origin.position)
    return Blame(offset, at, session, of_timer, held=offset != at)


def _of_message(worked: Record | None, applying: Applying) -> Blame:
    at = applying.first_offset if worked is None else worked.offset
    subject = applying.subject or worked
    if applying.timer_of is not None or subject is None:
        return Blame(at, at, applying.timer_of, of_timer=True)
    session = session_of(applying.program, subject)
    return Blame(subject.offset, at, session, held=applying.subject is not None)


def _told(error: Exception, found: Finding) -> Finding:
    if isinstance(error, Violation):
        return replace(found, cause=error.what, expected=str(error.expected), found=str(error.found))
    return replace(found, detail=f"{type(error).__name__}: {error}", traceback=_traceback(error))


def _traceback(error: Exception) -> str:
    """Where the stream's own code raised: without the frames of lockstep that called it; of what is long the end."""
    told = TracebackException.from_exception(error)
    of_stream = list(dropwhile(lambda frame: frame.filename.startswith(_LOCKSTEP), told.stack))
    if not of_stream:
        return ""  # lockstep's own code raised, on a row or a place that it cannot take
    told.stack[:] = of_stream
    text = "".join(told.format()).rstrip("\n")
    return text if len(text) <= TRACEBACK_MAX else f"...{text[-TRACEBACK_MAX:]}"
