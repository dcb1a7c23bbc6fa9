"""Finds the messages of a .proto file, by their places: all that a frame's message indexes ask for.

The registry gives the source of a schema, and no compiler comes with the Protobuf library; names
and places need none. What a file means beyond them is not looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from lockstep.declare.decoders.causes import Cause, Undecodable

Path = tuple[int, ...]
"""The index of a message among those of its file or of the message around it, from outside in."""

_TOKEN: Final = re.compile(
    r"""//[^\n]* | /\*.*?\*/                         # comments
      | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'        # strings
      | [A-Za-z_][\w.]* | [^\sA-Za-z_]               # names, and all else a character at a time""",
    re.VERBOSE | re.DOTALL,
)
_GROUP_TOKENS: Final = 20
"""Between the name of a group and its brace stand a number and perhaps options."""


@dataclass
class _Scope:
    """A file, a message, or a block that holds no messages of its own."""

    name: str
    path: Path
    found: int = 0


@dataclass
class _Reading:
    """The messages found so far."""

    tokens: list[str]
    names: dict[Path, str] = field(default_factory=dict)

    def read(self) -> dict[Path, str]:
        scopes = [_Scope("", ())]
        for at, word in enumerate(self.tokens):
            if word == "package" and len(scopes) == 1 and at + 1 < len(self.tokens):
                scopes[0].name = self.tokens[at + 1]
            elif word == "{":
                name = self._opened(at)
                scopes.append(scopes[-1] if name is None else self._message(scopes[-1], name))
            elif word == "}":
                scopes.pop()
                if not scopes:
                    raise Undecodable(Cause.UNFIT_SCHEMA, "is no .proto file: a brace too many")
        return self.names

    def _opened(self, at: int) -> str | None:
        """The name of the message that begins with this brace; None for blocks of other kinds."""
        if at >= 2 and self.tokens[at - 2] == "message" and _is_name(self.tokens[at - 1]):  # noqa: PLR2004  # two before
            return self.tokens[at - 1]
        for back in range(at - 1, max(at - _GROUP_TOKENS, 0), -1):
            if self.tokens[back] in {";", "{", "}"}:
                return None
            if self.tokens[back] == "group" and _is_name(self.tokens[back + 1]):
                return self.tokens[back + 1]
        return None

    def _message(self, around: _Scope, name: str) -> _Scope:
        path = (*around.path, around.found)
        around.found += 1
        full_name = f"{around.name}.{name}" if around.name else name
        self.names[path] = full_name
        return _Scope(full_name, path)


def message_names(text: str) -> dict[Path, str]:
    """The full names of a file's messages by their places.

    Raises:
        Undecodable: It is no .proto file.
    """
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*"))]
    return _Reading(tokens).read()


def _is_name(token: str) -> bool:
    return token.isidentifier()
