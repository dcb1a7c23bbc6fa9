"""Addresses of stored files: paths of a file system, and objects of a store that speaks S3's protocol.

`s3://BUCKET/PREFIX` as a `Path` has `s3:` as its first part and the bucket as its second one, with one slash for two.
So an address is joined, compared and printed as any path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

OBJECT_SCHEME: Final = "s3:"
"""First part of an address in an object store."""

# A store that is away is waited for, by each client for about 50 seconds. By default they give up after one or two,
# where it refuses connections (measured).
_DELTA_RETRIES: Final = {
    "max_retries": "100",
    "retry_timeout": "60s",
    "backoff_config.init_backoff": "100ms",
    "backoff_config.max_backoff": "2s",
    "backoff_config.base": "2",
}
_ARROW_ATTEMPTS: Final = 11  # after 25 ms, then twice as long each time


def is_in_object_store(path: Path) -> bool:
    """Whether a path is the address of an object or of a prefix of some."""
    return path.parts[:1] == (OBJECT_SCHEME,)


def to_uri(path: Path) -> str:
    """An address as other programs know it: a path, or `s3://bucket/key`."""
    return f"{OBJECT_SCHEME}//{'/'.join(path.parts[1:])}" if is_in_object_store(path) else str(path)


def to_url(path: Path) -> str:
    """An address as a catalog shows it: `file:///...`, or `s3://bucket/key`."""
    return to_uri(path) if is_in_object_store(path) else path.as_uri()


def make_absolute(path: Path) -> Path:
    """A path that means the same in every working folder; an address in an object store already does."""
    return path if is_in_object_store(path) else path.absolute()


def find_region() -> str | None:
    """The region of the buckets, by the environment."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def find_delta_options(table: Path) -> dict[str, str] | None:
    """What delta-rs needs besides the environment to open a table; None for one in a folder."""
    return dict(_DELTA_RETRIES) if is_in_object_store(table) else None


def make_arrow_client() -> S3FileSystem:
    """Arrow's own client of an object store, configured by the variables of the environment that delta-rs reads."""
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem  # heavy; only tables in an object store pay for it

    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    return S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme="http" if endpoint.scheme == "http" else "https",
        region=find_region(),
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ARROW_ATTEMPTS),
    )
