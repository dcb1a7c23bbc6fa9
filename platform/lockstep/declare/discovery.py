"""Finds the streams of a platform: every `Stream` at the top level of a module of its package."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import cast

import msgspec

from lockstep.declare.stream import Stream
from lockstep.errors import DeclarationError, SettingsError

PACKAGE = "assets"
"""Folder of one file per stream, in the folder of the platform."""


def find_streams(root: Path, package: str = PACKAGE) -> dict[str, Stream[object, object, msgspec.Struct]]:
    """The streams of a platform by name.

    Args:
        root: Folder with `definitions.py` and the package.
        package: The package of streams.

    Raises:
        SettingsError: The folder has no such package.
        DeclarationError: Two streams have the same name.
    """
    if not (root / package).is_dir():
        raise SettingsError(
            f"no folder {package}/ in {root}", next_step="run lockstep from the folder that holds definitions.py"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    found: dict[str, Stream[object, object, msgspec.Struct]] = {}
    for module in pkgutil.iter_modules([str(root / package)]):
        for value in vars(importlib.import_module(f"{package}.{module.name}")).values():
            if not isinstance(value, Stream):
                continue
            stream = cast("Stream[object, object, msgspec.Struct]", value)
            if found.setdefault(stream.name, stream) is not stream:
                raise DeclarationError("Stream.name", stream.name, "is the name of two streams", "rename one of them")
    return found
