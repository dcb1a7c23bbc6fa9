"""Syntax trees of files, parsed once for each process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse_file(path: Path) -> ast.Module:
    """Return the tree of a file. Do not change it: several rules share it."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file."""
    return tuple(ast.walk(parse_file(path)))
