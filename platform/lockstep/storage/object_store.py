"""Tables in an object store that speaks S3's protocol: the table root is `s3://BUCKET/PREFIX`.

Credentials, region and endpoint are read from the process's environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL`, a web identity, the machine's role), as delta-rs and Spark do.

The store must refuse to create an object that exists (If-None-Match): commits rest on it, and `lockstep doctor` tries
it. An object is whole or absent, and an acknowledged object lasts, so nothing needs a sync.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store
from pyarrow.fs import SubTreeFileSystem
from typing_extensions import override

from lockstep.addresses import to_uri
from lockstep.errors import EnvironmentProblem, StoreFailed, StoreRefused
from lockstep.storage.base import FileStatus, NeedsFileSystem, NotWritten, PendingFile, R, Storage, T
from lockstep.store_clients import WAIT_SECONDS, Answer, ask_ahead, open_arrow_client, repeat_unanswered

READ_WHOLE_BYTES = 8 * 1024 * 1024
"""Smaller files are read by one request; of larger files a reader fetches the ranges that it needs."""
REQUEST_SECONDS = 30
"""Timeout of one request."""
CLIENT_WAIT_SECONDS = 3
"""So long the client repeats a request without a word; after that it is repeated with a warning."""
RETRIES: Final = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=CLIENT_WAIT_SECONDS),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Of one request."""


class ObjectStorage(Storage):
    """The objects of a bucket as files; folders are prefixes of their keys.

    Attributes:
        client: Sends the requests.
    """

    def __init__(self, bucket: str, wait_seconds: float = WAIT_SECONDS) -> None:
        """Prepare a client; no request is sent.

        Args:
            bucket: Name of the bucket.
            wait_seconds: How long a request is repeated while the store does not answer.
        """
        self._wait_seconds = wait_seconds
        # Options given here replace those of the environment.
        options: Any = {"timeout": f"{REQUEST_SECONDS}s", "allow_http": _is_plain_allowed()}
        self.client = S3Store(bucket, retry_config=cast("Any", RETRIES), client_options=options)

    @property
    @override
    def poll_factor(self) -> float:
        return 5.0  # a request costs money

    @override
    def create(self, path: Path, content: bytes = b"") -> None:
        self.ask(path, lambda: obstore.put(self.client, _key(path), content, mode="create", use_multipart=False))

    @override
    def create_whole(self, path: Path, content: bytes) -> None:
        try:
            self.create(path, content)
        except PermissionError as error:
            raise NotWritten(error.errno, error.strerror, to_uri(path)) from error

    @override
    def replace(self, path: Path, content: bytes) -> None:
        self.ask(path, lambda: obstore.put(self.client, _key(path), content, use_multipart=False))

    @override
    def overwrite(self, path: Path, content: bytes) -> None:
        self.replace(path, content)

    @override
    def open_pending(self, path: Path) -> PendingObject:
        return PendingObject(self, path)

    @override
    def read(self, path: Path) -> bytes:
        return self.ask(path, lambda: bytes(obstore.get(self.client, _key(path)).bytes()))

    @override
    def read_range(self, path: Path, start: int, length: int) -> bytes:
        if not length:
            return b""
        try:
            return self.ask(path, lambda: bytes(obstore.get_range(self.client, _key(path), start=start, length=length)))
        except FileNotFoundError:
            raise
        except OSError:  # also for a range behind the end, which a file answers with nothing
            if start < self.ask(path, lambda: obstore.head(self.client, _key(path)))["size"]:
                raise
            return b""

    @override
    def open_source(self, path: Path) -> pa.NativeFile:
        content = self.ask(path, lambda: self._read_small(path))
        if content is not None:
            return pa.BufferReader(content)
        return open_arrow_client().open_input_file("/".join(path.parts[1:]))

    @override
    def list_names(self, folder: Path) -> list[str]:
        listing = self.ask(folder, lambda: obstore.list_with_delimiter(self.client, _prefix(folder)))
        keys = [*listing["common_prefixes"], *(item["path"] for item in listing["objects"])]
        return [key.rpartition("/")[2] for key in keys]

    @override
    def find_files(self, folder: Path, pattern: str) -> list[Path]:
        matches = _compile(pattern).fullmatch
        if "/" in pattern:
            return sorted(folder / name for name, _ in self.walk_files(folder) if matches(name))
        return sorted(folder / name for name in self.list_names(folder) if matches(name))

    @override
    def walk_files(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        prefix = _prefix(folder)
        # The whole list before the first item: a request that fails is repeated, and no item is yielded twice.
        for chunk in self.ask(folder, lambda: list(obstore.list(self.client, prefix))):
            for item in chunk:
                yield item["path"].removeprefix(prefix), _to_status(item)

    @override
    def get_status(self, path: Path) -> FileStatus | None:
        try:
            return _to_status(self.ask(path, lambda: obstore.head(self.client, _key(path))))
        except FileNotFoundError:
            return None

    @override
    def get_own_status(self, path: Path) -> FileStatus | None:
        return self.get_status(path)

    @override
    def map_files(self, act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return ask_ahead(act, items)

    @override
    def exists(self, path: Path) -> bool:
        return self.get_status(path) is not None or self._is_folder(path)

    @override
    def delete(self, path: Path) -> int | None:
        status = self.get_status(path)
        if status is None:
            return None
        self.ask(path, lambda: obstore.delete(self.client, _key(path)))
        return status.size

    @override
    def delete_files(self, paths: Sequence[Path]) -> list[int | None]:
        statuses = self.get_statuses(paths)
        present = [path for path, status in zip(paths, statuses, strict=True) if status is not None]
        self._delete_keys([_key(path) for path in present], paths)
        return [None if status is None else status.size for status in statuses]

    @override
    def delete_folder(self, folder: Path) -> None:
        keys = list[str]()
        for chunk in self.ask(folder, lambda: list(obstore.list(self.client, _prefix(folder)))):
            keys += [item["path"] for item in chunk]
        self._delete_keys(keys, [folder])

    @override
    def delete_empty_folder(self, folder: Path) -> None:
        """Nothing: a folder is there while an object is in it."""

    @override
    def move(self, path: Path, target: Path) -> None:
        if self.get_status(path) is None and self._is_folder(path):
            raise NeedsFileSystem(path, "rename a folder at once")
        self.copy(path, target)
        self.ask(path, lambda: obstore.delete(self.client, _key(path)))

    @override
    def copy(self, path: Path, target: Path) -> None:
        self.ask(path, lambda: obstore.copy(self.client, _key(path), _key(target)))

    @override
    def point(self, pointer: Path, target: Path) -> None:
        raise NeedsFileSystem(pointer, "make a symbolic link")

    @override
    def read_pointer(self, pointer: Path) -> Path | None:
        raise NeedsFileSystem(pointer, "make a symbolic link")

    @override
    def sync(self, path: Path) -> None:
        """Do nothing: an acknowledged object lasts."""

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
        return SubTreeFileSystem("/".join(folder.parts[1:]), open_arrow_client())

    @override
    def resolve(self, path: Path) -> Path:
        return path

    def ask(self, path: Path, request: Callable[[], Answer]) -> Answer:
        """The store's answer to a request about an object; its error is raised as that of a file."""

        def ask() -> Answer:
            with _as_os_error(path):
                return request()

        return repeat_unanswered(ask, self._wait_seconds)

    def _read_small(self, path: Path) -> bytes | None:
        answer = obstore.get(self.client, _key(path))
        if answer.meta["size"] > READ_WHOLE_BYTES:  # its bytes are not read
            return None
        return bytes(answer.bytes())

    def _delete_keys(self, keys: list[str], asked: Sequence[Path]) -> None:
        """One request for a thousand objects. An error names the first of the paths that were asked for."""
        if keys:
            self.ask(asked[0], lambda: obstore.delete(self.client, keys))

    def _is_folder(self, path: Path) -> bool:
        return self.ask(path, lambda: next(iter(obstore.list(self.client, _prefix(path))), None)) is not None


class PendingObject(PendingFile):
    """An object whose bytes wait on the local disk: it is uploaded when all of them are there."""

    def __init__(self, storage: ObjectStorage, path: Path) -> None:
        """Create the local file.

        Args:
            storage: The storage that receives it.
            path: Address of the object.
        """
        self._storage = storage
        self._path = path
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
        if name is not None:
            self._path = self._path.with_name(name)
        try:
            self._storage.ask(self._path, self._upload)
        except FileNotFoundError:  # no such upload: it was complete, and the store's word of it was lost
            status = self._storage.get_status(self._path)
            if status is None or status.size != size:
                raise
        self._sink.close()
        return size

    @override
    def abandon(self) -> None:
        self._sink.close()

    def _upload(self) -> None:
        self._sink.seek(0)
        obstore.put(self._storage.client, _key(self._path), self._sink)


@cache
def open_object_storage(bucket: str, wait_seconds: float = WAIT_SECONDS) -> ObjectStorage:
    """The storage of a bucket, one client a process: it keeps connections open.

    Raises:
        EnvironmentProblem: The environment does not configure a client.
    """
    _refuse_plain_endpoint(bucket)
    try:
        return ObjectStorage(bucket, wait_seconds)
    except (BaseError, ValueError) as error:
        raise EnvironmentProblem(
            f"s3://{bucket} cannot be reached as configured: {error}",
            next_step="set AWS_REGION, credentials and, for another store than Amazon's, AWS_ENDPOINT_URL",
        ) from error


def _refuse_plain_endpoint(bucket: str) -> None:
    """Refuse an endpoint that no client would connect to; they report it only as "builder error"."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint.startswith("http://") and not _is_plain_allowed():
        raise EnvironmentProblem(
            f"s3://{bucket} cannot be reached as configured: AWS_ENDPOINT_URL={endpoint} is without TLS",
            next_step="set AWS_ALLOW_HTTP=true, or name an endpoint with https",
        )


def _is_plain_allowed() -> bool:
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}


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
    expression = ""
    for part in pattern.split("/"):
        if part == "**":
            expression += _ANY_DEPTH
        else:
            expression += re.escape(part).replace(r"\*", "[^/]*") + "/"
    return re.compile(expression.removesuffix("/"))


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """Errors of the store as those of files, which name the object."""
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise _make_failure(error, to_uri(path)) from error
        raise FileNotFoundError(errno.ENOENT, "no such object", to_uri(path)) from None
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "the object exists", to_uri(path)) from error
    except BaseError as error:
        raise _make_failure(error, to_uri(path)) from error


_REFUSALS: Final = "AccessDenied|AllAccessDisabled|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken"
_REMEDIES: Final = {
    "NoSuchBucket": "create the bucket, or correct table_root (LOCKSTEP_TABLE_ROOT)",
    r"http://169\.254\.|[Cc]redential": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role",
    f"{_REFUSALS}|40[13] ": (
        "see to it that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of this machine, are right, and may "
        "read, write, list and delete objects below table_root"
    ),
    "": "make the store answer at AWS_ENDPOINT_URL, in AWS_REGION; committed batches are not lost",
}
"""What to do about an error of the store, by what its text contains; the first that fits."""


def _make_failure(error: Exception, address: str) -> StoreFailed:
    text = str(error)
    answer = _tell(error)
    step = next(step for pattern, step in _REMEDIES.items() if re.search(pattern, text))
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or re.match(_REFUSALS, answer):
        return StoreRefused(errno.EACCES, answer, address, step)
    return StoreFailed(errno.EIO, answer, address, step)


def _tell(error: Exception) -> str:
    """The store's answer, on one line: the error repeats the answer, an XML document, in each of its causes."""
    text = str(error)
    answer = re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    if answer is not None:
        return ": ".join(answer.groups())
    line = text.partition("\n")[0]
    form = r"Error performing (\w+ \S+) in .* - (?:Server returned non-2xx status code: )?(.*?):?\s*$"
    request = re.search(form, line)
    if request is None:
        return line
    return ": ".join(request.groups())
