"""The folders from which executors import the user's modules, and the version of the code in them."""

from __future__ import annotations

import sys
from pathlib import Path

import lockstep
from lockstep.declare.discovery import INSTALLED
from lockstep.declare.stream import AnyStream
from lockstep.model.code_version import CodeVersion, find_code, list_code_folders

LIBRARY_ROOT = Path(lockstep.__file__).absolute().parents[1]


def find_import_roots(stream: AnyStream) -> tuple[Path, ...]:
    """Folders that executors need on their import path to load the stream's modules.

    The transform may be of an installed package, and its types of the user's code: without its copy a worker would
    import them from its working folder.
    """
    return tuple(dict.fromkeys((*find_module_root(type(stream.transform).__module__), *list_code_folders())))


def find_code_version(stream: AnyStream) -> CodeVersion | None:
    """The version of the user's code; None if the transform is in a folder whose files may change under the run."""
    roots = find_module_root(type(stream.transform).__module__)
    is_of_library = any(root == LIBRARY_ROOT or not INSTALLED.isdisjoint(root.parts) for root in roots)
    if is_of_library:  # an installed transform: the user's code has its types
        return find_code(list_code_folders())
    return find_code(roots)


def find_module_root(name: str) -> tuple[Path, ...]:
    """The folder that executors need on their import path to load a module; None without a file."""
    module = sys.modules[name]
    if module.__file__ is None:
        return ()
    path = Path(module.__file__).absolute()
    if hasattr(module, "__path__"):  # a package: its file is __init__.py, a level below
        path = path.parent
    levels = len(module.__name__.split("."))
    return (path.parents[levels - 1],)
