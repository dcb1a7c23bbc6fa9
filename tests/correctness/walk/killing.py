"""Kills of operations at some write to the table root: by an exception, or of the process by SIGKILL.

An exception is cheap and always hits a write. A killed process runs no `finally`, and also dies in the middle of writes
of Parquet, Delta and LMDB.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from tests.correctness.walk.walking import Walk

WRITES = ("create", "create_whole", "replace", "delete", "move", "point", "sync")


class Killed(BaseException):
    """The process dies immediately."""


class Moment(NamedTuple):
    """When a process is killed: after a number of writes or of seconds."""

    writes: int
    seconds: float | None


def do_in_process(walk: Walk, action: str, moment: Moment) -> tuple[str | None, dict[str, Any]] | None:
    """Run an action of a walk in another process; return its note and the attributes of the walk, or None if killed."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["tests.correctness.walk.walking"])
    here, there = forking.Pipe(duplex=False)
    process = forking.Process(target=_do, args=(walk, action, moment, there))
    process.start()
    there.close()
    try:
        return here.recv()  # type: ignore[no-any-return]  # what `_do` sends
    except EOFError:
        return None
    finally:
        process.join()
        assert process.exitcode in {0, -signal.SIGKILL}, process.exitcode


def _do(walk: Walk, action: str, moment: Moment, tell: Connection) -> None:
    end = threading.Timer(moment.seconds or 0, os.kill, (os.getpid(), signal.SIGKILL))
    end.daemon = True
    if moment.seconds is not None:
        end.start()
    with walk.clocked(), kill_after(moment.writes, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        note = getattr(walk, action)()
    end.cancel()
    tell.send((note, vars(walk)))


def _raise() -> None:
    raise Killed


@contextmanager
def kill_after(writes: int, kill: Callable[[], None] = _raise) -> Iterator[list[str]]:
    """Let so many writes pass, and kill at each later write; yield the list of killed writes."""
    before = {name: getattr(LocalStorage, name) for name in WRITES}
    left = [writes]
    killed = list[str]()

    def make(name: str) -> Callable[..., Any]:
        def write(self: LocalStorage, path: Path, *more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                left[0] -= 1
                if left[0] < 0:
                    killed.append(f"{name} {'/'.join(path.parts[-2:])}")
                    kill()
            return before[name](self, path, *more)

        return write

    for name in WRITES:
        setattr(LocalStorage, name, make(name))
    try:
        yield killed
    except Killed:
        pass
    finally:
        for name, function in before.items():
            setattr(LocalStorage, name, function)
