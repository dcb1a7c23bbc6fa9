"""Whatever is done ends at some write to the table root, as by a kill of its process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockstep.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WRITES = ("create", "create_whole", "replace", "delete", "move", "share", "point", "sync")


class Killed(BaseException):
    """The process ends at once."""


@contextmanager
def kill_after(writes: int) -> Iterator[list[str]]:
    """Let so many writes pass, none of those after them; gives where it was killed, once it was."""
    before = {name: getattr(LocalStorage, name) for name in WRITES}
    left, killed = [writes], list[str]()

    def make(name: str) -> Callable[..., Any]:
        def write(self: LocalStorage, path: Path, *more: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                left[0] -= 1
                if left[0] < 0:
                    killed.append(f"{name} {'/'.join(path.parts[-2:])}")
                    raise Killed
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
