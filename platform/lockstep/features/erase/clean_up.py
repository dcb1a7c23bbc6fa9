"""An erasure that was committed and interrupted, which housekeeping completes."""

from __future__ import annotations

from lockstep.features.erase.erase import finish_erasing
from lockstep.operations.clean_up import CleanedStream, CleanUpStep


def _finish(stream: CleanedStream) -> None:
    finish_erasing(stream.folders)


INTERRUPTED = CleanUpStep(name="interrupted erasure", prepare=_finish)
