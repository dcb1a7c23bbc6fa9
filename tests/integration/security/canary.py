"""Search for secrets in files and command lines."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CHUNK_BYTES = 1 << 20


def forms(secret: str) -> tuple[bytes, ...]:
    """Return a secret's forms in files: text, UTF-16, hexadecimal, and base64 at any position in a longer text."""
    plain = secret.encode()
    shifted = [base64.b64encode(b"\0" * shift + plain) for shift in range(3)]
    # The first and last digits of base64 depend on the neighbouring bytes.
    inner = [digits[4 if shift else 0 : -4] for shift, digits in enumerate(shifted)]
    return (plain, secret.encode("utf-16-le"), plain.hex().encode(), *inner)


def holds(content: bytes, secrets: Iterable[str]) -> bool:
    """Return whether the bytes contain any form of any secret."""
    return any(form in content for secret in secrets for form in forms(secret))


def files_with(folders: Iterable[Path], secrets: Iterable[str], but: Iterable[Path] = ()) -> list[Path]:
    """Return files below the folders that contain a secret or are named after it."""
    wanted = tuple(secrets)
    known = set(but)
    return [
        path
        for folder in folders
        for path in _files(folder)
        if path not in known and (holds(str(path).encode(), wanted) or _file_holds(path, wanted))
    ]


def command_lines() -> dict[int, bytes]:
    """Return the command line of every process of this machine."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.is_file():  # no sockets
                yield path


def _file_holds(path: Path, secrets: tuple[str, ...]) -> bool:
    longest = max(len(form) for secret in secrets for form in forms(secret))
    kept = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                if holds(kept + chunk, secrets):
                    return True
                kept = chunk[-longest:]
    except OSError:
        return False  # deleted meanwhile: temporary
    return False
