"""Tables in an object store that speaks S3's protocol: the table root is `s3://BUCKET/PREFIX`.

Credentials, region and endpoint come from the process's environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL`, a web identity, the machine's role), where delta-rs and Spark look for them, too.

The store must refuse to create an object that exists (If-None-Match): commits rest on it, and `lockstep doctor` tries
it. An object is whole or absent, and what the store has acknowledged lasts, so there is nothing to sync.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store
from pyarrow.fs import SubTreeFileSystem
from typing_extensions import override

from lockstep.addresses import to_uri
from lockstep.errors import EnvironmentProblem
from lockstep.storage.base import FileStatus, NeedsFileSystem, NotWritten, PendingFile, Storage
from lockstep.store_clients import WAIT_SECONDS, Answer, make_arrow_client, repeat_broken_off

READ_WHOLE_BYTES = 8 * 1024 * 1024
"""Smaller files are read by one request; of larger ones a reader fetches what it needs."""
REQUESTS_AT_ONCE = 16
REQUEST_SECONDS = 30
"""Timeout of one request."""
RETRIES: Final = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=WAIT_SECONDS),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Of one request."""


class ObjectStorage(Storage):
    """The objects of a bucket as files; folders are prefixes of their keys."""

    def __init__(self, bucket: str) -> None:
        """Prepare a client; no request is sent.

        Args:
            bucket: Name of the bucket.
        """
        # Options given here replace those of the environment.
        plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}
        client: Any = {"timeout": f"{REQUEST_SECONDS}s", "allow_http": plain}
        self._store = S3Store(bucket, retry_config=cast("Any", RETRIES), client_options=client)

    @property
    @override
    def poll_factor(self) -> float:
        return 5.0  # a request costs money

    @property
    @override
    def requests_at_once(self) -> int:
        return REQUESTS_AT_ONCE

    @override
    def create(self, path: Path, content: bytes = b"") -> None:
        _ask(path, lambda: obstore.put(self._store, _key(path), content, mode="create", use_multipart=False))

    @override
    def create_whole(self, path: Path, content: bytes) -> None:
        try:
            self.create(path, content)
        except PermissionError as error:
            raise NotWritten(error.errno, error.strerror, to_uri(path)) from error

    @override
    def replace(self, path: Path, content: bytes) -> None:
        _ask(path, lambda: obstore.put(self._store, _key(path), content, use_multipart=False))

    @override
    def open_pending(self, path: Path) -> PendingObject:
        return PendingObject(self._store, path)

    @override
    def read(self, path: Path) -> bytes:
        return _ask(path, lambda: bytes(obstore.get(self._store, _key(path)).bytes()))

    @override
    def read_range(self, path: Path, start: int, length: int) -> bytes:
        if not length:
            return b""
        try:
            return _ask(path, lambda: bytes(obstore.get_range(self._store, _key(path), start=start, length=length)))
        except OSError:
            if start < _ask(path, lambda: obstore.head(self._store, _key(path)))["size"]:
                raise
            return b""

    @override
    def open_source(self, path: Path) -> pa.NativeFile:
        content = _ask(path, lambda: self._read_small(path))
        if content is not None:
            return pa.BufferReader(content)
        return make_arrow_client().open_input_file("/".join(path.parts[1:]))

    @override
    def list_names(self, folder: Path) -> list[str]:
        found = _ask(folder, lambda: obstore.list_with_delimiter(self._store, _prefix(folder)))
        below = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [key.rpartition("/")[2] for key in below]

    @override
    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        matches = _compile(pattern).fullmatch
        if "/" in pattern:
            return sorted(folder / name for name, _ in self.walk_files(folder) if matches(name))
        return sorted(folder / name for name in self.list_names(folder) if matches(name))

    @override
    def walk_files(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        prefix = _prefix(folder)
        for chunk in _ask(folder, lambda: list(obstore.list(self._store, prefix))):
            for each in chunk:
                yield each["path"].removeprefix(prefix), _to_status(each)

    @override
    def get_status(self, path: Path) -> FileStatus | None:
        try:
            return _to_status(_ask(path, lambda: obstore.head(self._store, _key(path))))
        except FileNotFoundError:
            return None

    @override
    def get_statuses(self, paths: Sequence[Path]) -> list[FileStatus | None]:
        """Requests at the same time: one by one, they would take as long as the files of a batch are many."""
        if not paths:
            return []
        with ThreadPoolExecutor(min(len(paths), self.requests_at_once), "statuses") as threads:
            return list(threads.map(self.get_status, paths))

    @override
    def exists(self, path: Path) -> bool:
        return self.get_status(path) is not None or self._is_folder(path)

    @override
    def delete(self, path: Path) -> int | None:
        found = self.get_status(path)
        if found is None:
            return None
        _ask(path, lambda: obstore.delete(self._store, _key(path)))
        return found.size

    @override
    def delete_folder(self, folder: Path) -> None:
        for chunk in _ask(folder, lambda: list(obstore.list(self._store, _prefix(folder)))):
            keys = [each["path"] for each in chunk]
            _ask(folder, partial(obstore.delete, self._store, keys))

    @override
    def delete_empty_folder(self, folder: Path) -> None:
        """Nothing: a folder is there while an object is in it."""

    @override
    def move(self, path: Path, target: Path) -> None:
        if self.get_status(path) is None and self._is_folder(path):
            raise NeedsFileSystem(path, "rename a folder at once")
        self.copy(path, target)
        _ask(path, lambda: obstore.delete(self._store, _key(path)))

    @override
    def copy(self, path: Path, target: Path) -> None:
        _ask(path, lambda: obstore.copy(self._store, _key(path), _key(target)))

    @override
    def point(self, pointer: Path, target: Path) -> None:
        raise NeedsFileSystem(pointer, "let a name stand for a folder")

    @override
    def read_pointer(self, pointer: Path) -> Path | None:
        raise NeedsFileSystem(pointer, "let a name stand for a folder")

    @override
    def sync(self, path: Path) -> None:
        """Nothing: what the store has acknowledged lasts."""

    @override
    def make_folder(self, folder: Path) -> None:
        """Nothing: a folder is there when an object is in it."""

    @override
    def lock(self, path: Path) -> AbstractContextManager[None]:
        raise NeedsFileSystem(path, "lock a file")

    @override
    def uri(self, path: Path) -> str:
        return to_uri(path)

    @override
    def open_arrow(self, folder: Path) -> SubTreeFileSystem:
        return SubTreeFileSystem("/".join(folder.parts[1:]), make_arrow_client())

    @override
    def resolve(self, path: Path) -> Path:
        return path

    def _read_small(self, path: Path) -> bytes | None:
        found = obstore.get(self._store, _key(path))
        return bytes(found.bytes()) if found.meta["size"] <= READ_WHOLE_BYTES else None

    def _is_folder(self, path: Path) -> bool:
        return _ask(path, lambda: next(iter(obstore.list(self._store, _prefix(path))), None)) is not None


class PendingObject(PendingFile):
    """An object whose bytes wait on the local disk: it is uploaded when all of them are there."""

    def __init__(self, store: S3Store, path: Path) -> None:
        """Create the local file.

        Args:
            store: Where it is uploaded.
            path: Address of the object.
        """
        self._store, self._path = store, path
        self._sink = cast("BinaryIO", tempfile.TemporaryFile(prefix="lockstep-upload-"))  # noqa: SIM115  # closed by its owner

    @property
    @override
    def sink(self) -> BinaryIO:
        return self._sink

    @property
    @override
    def is_open(self) -> bool:
        return not self._sink.closed

    @override
    def finish(self, name: str | None = None) -> int:
        size = self._sink.tell()
        self._path = self._path if name is None else self._path.with_name(name)
        try:
            _ask(self._path, self._upload)
        except FileNotFoundError:  # no such upload: it was complete, and the store's word of it was lost
            if _ask(self._path, lambda: obstore.head(self._store, _key(self._path)))["size"] != size:
                raise
        self._sink.close()
        return size

    @override
    def abandon(self) -> None:
        self._sink.close()

    def _upload(self) -> None:
        self._sink.seek(0)
        obstore.put(self._store, _key(self._path), self._sink)


@cache
def open_object_storage(bucket: str) -> ObjectStorage:
    """The storage of a bucket, one client a process: it keeps connections open.

    Raises:
        EnvironmentProblem: The environment does not configure a client.
    """
    try:
        return ObjectStorage(bucket)
    except (BaseError, ValueError) as error:
        raise EnvironmentProblem(
            f"s3://{bucket} cannot be reached as the environment says: {error}",
            next_step="set AWS_REGION, credentials and, for another store than Amazon's, AWS_ENDPOINT_URL",
        ) from error


def _key(path: Path) -> str:
    return "/".join(path.parts[2:])


def _prefix(folder: Path) -> str:
    return f"{_key(folder)}/"


def _to_status(meta: Any) -> FileStatus:
    return FileStatus(meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


_ANY_DEPTH: Final = "(?:[^/]+/)*"


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern such as `*/*.parquet`, as `Path.glob` reads it."""
    parts = [
        _ANY_DEPTH if part == "**" else re.escape(part).replace(r"\*", "[^/]*") + "/" for part in pattern.split("/")
    ]
    return re.compile("".join(parts).removesuffix("/"))


def _ask(path: Path, request: Callable[[], Answer]) -> Answer:
    """What the store answers, or its error as that of a file."""

    def ask() -> Answer:
        with _as_os_error(path):
            return request()

    return repeat_broken_off(ask)


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """Errors of the store as those of files, which name the object."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such object", to_uri(path)) from None
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "the object exists", to_uri(path)) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, _tell(error), to_uri(path)) from error
    except BaseError as error:
        raise OSError(errno.EIO, _tell(error), to_uri(path)) from error


def _tell(error: BaseError) -> str:
    """What the store said, on one line: the error repeats the answer, an XML document, in each of its causes."""
    text = str(error)
    said = re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    return ": ".join(said.groups()) if said else text.partition("\n")[0]
