"""Locations of secrets in declarations: a declaration has no secret itself."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import DeclarationError


def require_location(field: str, reference: str, problem: str, right: str) -> None:
    """Refuse a text that is not the location of a secret: `file:` and an absolute path, or `env:` and a variable.

    Args:
        field: The field, for the error.
        reference: The location; the error does not show it, because it may be the secret itself.
        problem: The problem of another text.
        right: A valid alternative.

    Raises:
        DeclarationError: It is another text.
    """
    kind, _, place = reference.partition(":")
    if not (kind == "file" and Path(place).is_absolute()) and not (kind == "env" and place.isidentifier()):
        raise DeclarationError(field, "<hidden>", problem, right)
