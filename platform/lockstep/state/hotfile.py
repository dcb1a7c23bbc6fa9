"""Keys and values inside a hot copy, and a look at its file before lmdb maps it. Pure but for one read."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

KEY_BYTES_MAX = 511
"""lmdb's limit, compiled in."""
STAMP_KEY = b"!"

_PLAIN, HASHED = b"k", b"h"
_CRC = struct.Struct("<I")
_LENGTH = struct.Struct("<I")

_META_BYTES = 256
"""More than the part of a meta page that is read here."""
_META_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<16xI20xI92xQQ")
"""Page header, magic, (version, map's address and size), page size in the first word of the free
list's record, (the rest of the two trees' records), last page, transaction."""


class _Meta(msgspec.Struct, frozen=True):
    """The part of lmdb's meta page that says how long the file must be."""

    page_size: int
    last_page: int
    transaction: int


class HotDamaged(Exception):
    """The hot copy cannot be used; it is thrown away and rebuilt. Never leaves this package."""


class KeyCollision(HotDamaged):
    """Two sessions with one hash. Rebuilding would not help: reported as it is."""


def hot_key(session: bytes) -> bytes:
    """The lmdb key of a session: itself, or its hash when it is too long for lmdb."""
    if len(session) < KEY_BYTES_MAX:
        return _PLAIN + session
    return HASHED + hashlib.blake2b(session, digest_size=32).digest()


def is_hashed(key: bytes) -> bool:
    """Whether an lmdb key stands for a session too long for lmdb."""
    return key.startswith(HASHED)


def seal(key: bytes, session: bytes, value: bytes) -> bytes:
    """The lmdb value: a checksum over all of the entry, the session where its key is a hash, the value."""
    named = _LENGTH.pack(len(session)) + session if is_hashed(key) else b""
    return _CRC.pack(zlib.crc32(value, zlib.crc32(named, zlib.crc32(key)))) + named + value


def unseal(key: bytes, sealed: bytes) -> tuple[bytes, bytes]:
    """The session and the value of an lmdb entry.

    Raises:
        HotDamaged: The entry is not as it was written.
    """
    rest = sealed[_CRC.size :]
    if sealed[: _CRC.size] != _CRC.pack(zlib.crc32(rest, zlib.crc32(key))):
        raise HotDamaged("an entry does not match its checksum")
    if not is_hashed(key):
        return key[len(_PLAIN) :], rest
    (length,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + length
    return rest[_LENGTH.size : end], rest[end:]


def fits(path: Path) -> bool:
    """Whether a hot copy's file is there with its pages.

    lmdb maps the file and would die of SIGBUS on a page behind its end, which no handler can
    mend; so the newest meta page's last page is compared with the file's size first.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _last_page_fits(file.fileno(), size)
    except FileNotFoundError:
        return False


def _last_page_fits(handle: int, size: int) -> bool:
    first = _meta(os.pread(handle, _META_BYTES, 0))
    second = _meta(os.pread(handle, _META_BYTES, first.page_size)) if first else None
    if first is None or second is None or first.page_size != second.page_size:
        return False
    newest = max(first, second, key=lambda meta: meta.transaction)
    return size >= (newest.last_page + 1) * newest.page_size


def _meta(page: bytes) -> _Meta | None:
    """What a meta page says; None when it is none."""
    if len(page) < _META_BYTES:
        return None
    magic, page_size, last_page, transaction = _META.unpack_from(page)
    return _Meta(page_size, last_page, transaction) if magic == _META_MAGIC else None
