"""Chooses the storage of a path."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from lockstep.addresses import is_in_object_store
from lockstep.errors import EnvironmentProblem
from lockstep.storage.base import NeedsFileSystem, Storage
from lockstep.storage.local import LocalStorage
from lockstep.store_clients import WAIT_SECONDS

_LOCAL: Final = LocalStorage()


def find_storage(path: Path, *, wait_seconds: float = WAIT_SECONDS) -> Storage:
    """The storage that holds a path.

    Args:
        path: A file or a folder.
        wait_seconds: How long an object store that does not answer is waited for, a request.

    Raises:
        EnvironmentProblem: It is in an object store, whose client is not installed or not configured.
    """
    if not is_in_object_store(path):
        return _LOCAL
    try:
        from lockstep.storage.object_store import open_object_storage  # an extra
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{error.name} is not installed: tables in an object store need it",
            next_step="on each machine that runs tasks: pip install 'PATH/TO/CHECKOUT[s3]'",
        ) from error
    return open_object_storage(path.parts[1], wait_seconds)


def create_owned(path: Path, owner: str) -> bool:
    """Create a file with the name of its owner; False if another process owns it.

    A client repeats a request whose answer was lost, and the first request refuses the second: the content decides.

    Args:
        path: The file.
        owner: A name that no other process uses.
    """
    storage = find_storage(path)
    content = owner.encode()
    try:
        storage.create_whole(path, content)
    except FileExistsError:
        with suppress(FileNotFoundError):
            return storage.read(path) == content
        return False
    return True


def require_file_system(path: Path, what: str) -> None:
    """Refuse an operation before it starts.

    Args:
        path: The path that it would write.
        what: The feature that it needs and object stores lack.

    Raises:
        NeedsFileSystem: The path is in an object store.
    """
    if is_in_object_store(path):
        raise NeedsFileSystem(path, what)
