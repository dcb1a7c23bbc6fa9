"""A mutant: the library with one rule removed, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        name: The removed rule.
        file: The file, relative to the repository.
        piece: A piece of its source, which occurs exactly once.
        replacement: The source that replaces the piece.
        tests: Node ids of tests, relative to the repository; at least one of the tests must fail.
        equivalent: Why no test can notice it; empty for a mutant that must be killed.
    """

    name: str
    file: str
    piece: str
    replacement: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def change(self, source: str) -> str:
        """Return the mutated source of its file.

        Raises:
            ValueError: The piece does not occur exactly once.
        """
        found = source.count(self.piece)
        if found != 1:
            raise ValueError(f"{self.name}: its piece occurs {found} times in {self.file}: change tests/house/mutants")
        return source.replace(self.piece, self.replacement)


@dataclass(frozen=True)
class Change:
    """A mutant without its file.

    Attributes:
        rule: The removed rule.
        piece: See `Mutant`.
        replacement: See `Mutant`.
        tests: Names of tests of the group's module, or paths below `tests`, separated by spaces.
        equivalent: See `Mutant`.
    """

    rule: str
    piece: str
    replacement: str
    tests: str
    equivalent: str = ""


def list_mutants(file: str, tests: str, *changes: Change) -> Iterator[Mutant]:
    """Yield the mutants of one file.

    Args:
        file: The file, below `platform/lockstep`.
        tests: The module with most of its near tests, below `tests`.
        changes: The changes, each a mutant.
    """
    for each in changes:
        named = each.tests.split()
        nodes = tuple(f"tests/{name}" if "/" in name else f"tests/{tests}::{name}" for name in named)
        mutated = f"platform/lockstep/{file}"
        yield Mutant(f"{file}: {each.rule}", mutated, each.piece, each.replacement, nodes, each.equivalent)


def find_test(root: Path, node: str) -> bool:
    """Return whether the function of a node id is defined in its module."""
    module, _, function = node.partition("::")
    path = root / module
    return path.is_file() and (not function or f"def {function}(" in path.read_text())
