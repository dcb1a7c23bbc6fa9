"""Addresses of stored files: paths of a file system, objects of a store that speaks S3's protocol; names of loopback.

`s3://BUCKET/PREFIX` as a `Path` has `s3:` as its first part and the bucket as its second part, with one slash for two.
So an address is joined, compared and printed as any path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

OBJECT_SCHEME: Final = "s3:"
"""First part of an address in an object store."""


_LOOPBACK: Final = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\]|::1)(:\d{1,5})?", re.ASCII | re.IGNORECASE)


def is_loopback_name(name: str) -> bool:
    """Whether an address, or the value of `Host` of a request, is loopback's: no name of others can lead there."""
    return _LOOPBACK.fullmatch(name) is not None


def is_in_object_store(path: Path) -> bool:
    """Whether a path is the address of an object or of a prefix of some."""
    return path.parts[:1] == (OBJECT_SCHEME,)


def to_uri(path: Path) -> str:
    """An address as other programs know it: a path, or `s3://bucket/key`."""
    if not is_in_object_store(path):
        return str(path)
    return f"{OBJECT_SCHEME}//{'/'.join(path.parts[1:])}"


def to_url(path: Path) -> str:
    """An address as a catalog shows it: `file:///...`, or `s3://bucket/key`."""
    if is_in_object_store(path):
        return to_uri(path)
    return path.as_uri()


def make_absolute(path: Path) -> Path:
    """A path that means the same in every working folder; an address in an object store already does."""
    if is_in_object_store(path):
        return path
    return path.absolute()
