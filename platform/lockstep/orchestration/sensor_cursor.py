"""The memory of a sensor between its ticks. Pure: no Dagster."""

from __future__ import annotations

from typing import Self

import msgspec

from lockstep.model.decoding import decode_json


class SensorCursor(msgspec.Struct, frozen=True):
    """State of a sensor between ticks; a new layout has a new default of `version`.

    Attributes:
        version: Version of the layout.
    """

    version: int = 1

    def encode(self) -> str:
        """As sorted JSON."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def read(cls, text: str | None) -> tuple[Self, str]:
        """The cursor, and a warning when it was unreadable and has been reset."""
        new = cls()
        if not text:
            return new, ""
        try:
            cursor = decode_json(text, cls)
        except msgspec.DecodeError as error:
            return new, f"the cursor cannot be read and is reset: {error}"
        if cursor.version != new.version:
            return new, f"the cursor is of version {cursor.version}, not {new.version}, and is reset"
        return cursor, ""
