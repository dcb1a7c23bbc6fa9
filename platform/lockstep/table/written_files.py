"""Files that an operation writes for one commit: deleted if it fails, so that a full disk does not stay full.

After a kill, housekeeping deletes them once no commit can name them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.errors import CommitUnknown, LockstepError
from lockstep.storage import find_storage


@contextmanager
def delete_on_error(made: Iterable[Path]) -> Iterator[None]:
    """Delete files if the block that writes them fails; nothing refers to them yet.

    Args:
        made: Their paths; may grow in the block.
    """
    try:
        yield
    except BaseException:
        delete_files(made)
        raise


@contextmanager
def delete_unless_committed(made: Iterable[Path]) -> Iterator[None]:
    """Delete files if the block refuses to commit them; not if it may have committed them.

    Args:
        made: Their paths.
    """
    try:
        yield
    except CommitUnknown:
        raise
    except LockstepError:  # of the commit protocol: nothing is in the log
        delete_files(made)
        raise


def delete_files(made: Iterable[Path]) -> None:
    """Delete files that no commit names; failures are passed over."""
    for path in made:
        with suppress(OSError):  # must not hide why
            find_storage(path).delete(path)
