"""Chooses the code of a process once, at its start: the current release, or a copy of the working folder.

Workers import the user's modules later than the driver. From a folder that somebody edits, or a link that moves, a run
would mix two versions.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import chain
from pathlib import Path
from types import ModuleType

from lockstep.feature import load_parts
from lockstep.model.code_version import CodeVersion, remember_code
from lockstep.settings import Settings
from lockstep.user_code.copies import make_copy
from lockstep.user_code.files import CodeFiles, CodeUnusable, list_code, read_code
from lockstep.user_code.version_control import find_commit


def pin_code(folder: Path, settings: Settings) -> Path:
    """The folder from which this process imports the user's modules: an immutable copy, held until its end.

    On a cluster without the setting `code_root` it is the folder itself: the machines may share no other.

    Args:
        folder: The working folder, with `definitions.py`.
        settings: The master, and the code root.

    Raises:
        CodeUnusable: The code cannot be copied, or the copy has changed.
    """
    if not settings.has_shared_code:
        return folder
    root = settings.find_code_root()
    found: Iterator[tuple[Path, CodeVersion] | None] = (find(root) for find in load_parts("code_finders"))
    copy, version = next(filter(None, found), None) or _copy_for_run(folder, root, settings)
    remember_code(copy, version)
    if settings.extensions:  # nothing else imports the project before the choice
        _forget_modules(folder)
    return copy


def _forget_modules(folder: Path) -> None:
    """Let modules of the working folder be imported again, from the copy.

    Extensions are loaded with the features, before the choice, and import parts of the project.
    """
    names = {name.partition("/")[0].removesuffix(".py") for name in list_code(folder)}
    forgotten = list[str]()
    for name, module in list(sys.modules.items()):
        paths = (getattr(module, "__file__", None), *getattr(module, "__path__", ()))
        is_of_folder = any(path is not None and Path(path).is_relative_to(folder) for path in paths)
        if is_of_folder and name.partition(".")[0] in names:
            forgotten.append(name)
    for name in forgotten:  # afterwards: the path of a package inside of another needs its parent
        del sys.modules[name]


def _copy_for_run(folder: Path, root: Path, settings: Settings) -> tuple[Path, CodeVersion]:
    """Copy the code into the code root; next to the state if it has its default, and cannot be written."""
    excluded = settings.list_data_folders()
    try:
        return copy_code(folder, root, excluded)
    except OSError as error:
        if settings.code_root is not None:
            step = "let this user write there, or set code_root to another folder"
            raise CodeUnusable(root, f"cannot be written: {error}", step) from error
        return copy_code(folder, settings.local_root.absolute() / "code", excluded)


def copy_code(folder: Path, root: Path, excluded: Collection[Path] = ()) -> tuple[Path, CodeVersion]:
    """Copy the code of a folder, and name its version.

    Args:
        folder: The project's folder.
        root: The code root.
        excluded: Folders that are not code, such as those of tables.

    Raises:
        CodeUnusable, OSError: As `pin_code`.
    """
    code = read_code(folder, (*excluded, root))
    commit, is_modified = find_commit(folder, list_top_names(code))
    named = chain.from_iterable(list_digests(root) for list_digests in load_parts("code_listers"))
    return make_copy(root, code, set(named)), CodeVersion(digest=code.digest, commit=commit, is_modified=is_modified)


def list_top_names(code: CodeFiles) -> list[str]:
    """The files and folders of the code that are directly in its folder."""
    return sorted({name.partition("/")[0] for name in code.contents})


_LIBRARIES = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]


class _CodeFinder(MetaPathFinder):
    """Finds the modules of one folder, independent of the import path: Dagster changes it around its imports."""

    def __init__(self, folder: Path) -> None:
        self._path = [str(folder)]
        self._names = {name.partition("/")[0].removesuffix(".py") for name in list_code(folder)}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name not in self._names:
            return None
        spec = PathFinder.find_spec(name, self._path, target)
        if spec is None or spec.loader is not None:
            return spec
        # A folder without __init__.py: an installed module of this name is meant, as on Python's own path.
        installed = PathFinder.find_spec(name, _LIBRARIES, target)
        if installed is not None and installed.loader is not None:
            return None
        # A list: Python would search its own kind of list on the import path again when that changes.
        spec.submodule_search_locations = list(spec.submodule_search_locations or ())
        return spec


def import_from(folder: Path) -> None:
    """Import modules of a folder, before any others of the import path, until this process ends."""
    places = (number for number, finder in enumerate(sys.meta_path) if finder is PathFinder)
    place = next(places, len(sys.meta_path))
    sys.meta_path.insert(place, _CodeFinder(folder))
