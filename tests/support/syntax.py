"""Syntax trees of files, parsed once a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse_file(path: Path) -> ast.Module:
    """The tree of a file, which several rules read: do not change it."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file."""
    return tuple(ast.walk(parse_file(path)))
