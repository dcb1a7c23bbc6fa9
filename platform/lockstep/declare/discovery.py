"""Finds the declarations of a platform: every `Stream` and `Derived` at the top level of a module of its package.

Those in a list, tuple or dict there are found, too: a fleet of plants is often declared in a loop.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

from lockstep.declare.derived import Derived
from lockstep.declare.rules import find_inline_rules
from lockstep.declare.stream import AnyStream, Stream, format_source
from lockstep.errors import DeclarationError, LockstepError, SettingsError

PACKAGE = "assets"
"""Folder of one file per stream, in the folder of the platform."""


class ModuleBroken(LockstepError):
    """A file of the streams cannot be imported.

    Attributes:
        file: The file, from the platform's folder.
        reason: The exception, with its line.
    """

    def __init__(self, file: str, reason: str, *, next_step: str) -> None:
        super().__init__(f"{file} cannot be imported: {reason}", next_step=next_step)
        self.file = file
        self.reason = reason


OnBroken = Callable[[ModuleBroken], None]


def _refuse(broken: ModuleBroken) -> None:
    raise broken


def find_streams(
    root: Path, package: str = PACKAGE, on_broken: OnBroken = _refuse
) -> dict[str, Stream[object, object, msgspec.Struct]]:
    """The streams of a platform by name.

    Args:
        root: Folder with `definitions.py` and the package.
        package: The package of streams.
        on_broken: Is given each file that cannot be imported, which is left out; by default it is raised.

    Raises:
        SettingsError: The folder has no such package.
        DeclarationError: Two streams have the same name.
    """
    return _collect(_import_modules(root, package, on_broken))


def find_derived(root: Path, package: str = PACKAGE, on_broken: OnBroken = _refuse) -> dict[str, Derived]:
    """The derived tables of a platform by name.

    Args:
        root: Folder with `definitions.py` and the package.
        package: The package of streams.
        on_broken: Is given each file that cannot be imported, which is left out; by default it is raised.

    Raises:
        SettingsError: The folder has no such package.
        DeclarationError: Two of them, or one and a stream, have the same name.
    """
    modules = list(_import_modules(root, package, on_broken))
    streams = _collect(iter(modules))
    tables = dict[str, Derived]()
    for module in modules:
        for value in _list_values(module):
            if not isinstance(value, Derived):
                continue
            # One folder of the table root, one asset and one name in SQL belong to a name.
            if value.name in streams or tables.setdefault(value.name, value) is not value:
                other = "a stream" if value.name in streams else "another derived table"
                raise DeclarationError("Derived.name", value.name, f"is the name of {other}, too", "rename one of them")
    return tables


def _import_modules(root: Path, package: str, on_broken: OnBroken) -> Iterator[ModuleType]:
    if not (root / package).is_dir():
        raise SettingsError(
            f"no folder {package}/ in {root}", next_step="run lockstep from the folder that holds definitions.py"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for module in pkgutil.iter_modules([str(root / package)]):
        try:
            imported = importlib.import_module(f"{package}.{module.name}")
        except Exception as error:  # noqa: BLE001  # the user's module: any error of its import
            suffix = "" if module.ispkg else ".py"
            # The streams of other files run on.
            on_broken(_describe_broken(root, f"{package}/{module.name}{suffix}", error))
        else:
            yield imported


def _describe_broken(root: Path, file: str, error: Exception) -> ModuleBroken:
    step = f"correct {file}; other streams run on"
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, LockstepError):
        step = error.next_step
        reason = error.problem
    frames = traceback.extract_tb(error.__traceback__)
    # The last frame in the user's file: deeper frames are of what it imports.
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(root / file)), None)
    if line:
        reason = f"{reason} (line {line})"
    broken = ModuleBroken(file, reason, next_step=step)
    broken.__cause__ = error
    return broken


def _collect(modules: Iterator[ModuleType]) -> dict[str, Stream[object, object, msgspec.Struct]]:
    found: dict[str, Stream[object, object, msgspec.Struct]] = {}
    places: dict[str, str] = {}
    for module in modules:
        for value in _list_values(module):
            if not isinstance(value, Stream):
                continue
            stream = cast("Stream[object, object, msgspec.Struct]", value)
            place = places.setdefault(stream.name, module.__name__)
            if found.setdefault(stream.name, stream) is not stream:
                where = f"in {place} and {module.__name__}"
                if place == module.__name__:
                    where = f"both in {place}"
                problem = f"is the name of two streams, {where}"
                raise DeclarationError("Stream.name", stream.name, problem, "rename one of them")
    return found


def _list_values(module: ModuleType) -> Iterator[object]:
    """The values at a module's top level, and those in lists, tuples and dicts there."""
    for value in list(vars(module).values()):
        yield value
        if isinstance(value, (list, tuple)):
            yield from cast("list[object]", value)
        elif isinstance(value, dict):
            yield from cast("dict[object, object]", value).values()


def load_streams(code: str) -> dict[str, Stream[object, object, msgspec.Struct]]:
    """The streams of other code than that of the working folder, by name.

    Modules of the same name that are loaded already are replaced, so that `assets` of another checkout can be loaded
    in a process that knows its own.

    Args:
        code: The folder of a checkout, with `assets/`; a file; or the name of a module.

    Raises:
        SettingsError: The folder, file or module does not exist.
        DeclarationError: Two streams have the same name.
    """
    path = Path(code).absolute()
    if path.is_dir():
        _require_package(code, path)
        # `assets` of this process may be another checkout's.
        _forget_modules(PACKAGE, path)
        return find_streams(path)
    if path.suffix == ".py" and path.is_file():
        root = path.parent
        name = path.stem
        if root.name == PACKAGE:  # its modules import each other as a package
            root = root.parent
            name = f"{PACKAGE}.{name}"
        _forget_modules(name.partition(".")[0], root)
    else:
        name = code
    try:
        return _collect(iter([importlib.import_module(name)]))
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        step = "name the folder of a checkout (with assets/), a file (assets/order_books.py), or the name of a module"
        raise SettingsError(f"no code at {code!r}", next_step=step) from None


def _require_package(code: str, folder: Path) -> None:
    if (folder / PACKAGE).is_dir():
        return
    step = f"name the folder that holds {PACKAGE}/, a file in it, or the name of a module"
    if folder.name == PACKAGE:
        step = f"name the folder that holds {PACKAGE}/: {folder.parent}"
    raise SettingsError(f"{code!r} is a folder without {PACKAGE}/", next_step=step)


def find_code(code: str) -> str:
    """The absolute path of a folder or a file; the name of a module as it is."""
    if code and Path(code).exists():
        return str(Path(code).absolute())
    return code


def _forget_modules(package: str, root: Path) -> None:
    """Let the next import of a package search a folder first."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    sys.path[:] = [str(root), *(entry for entry in sys.path if entry != str(root))]
    importlib.invalidate_caches()


def digest_code(stream: AnyStream) -> str:
    """SHA-256 of what decides the rows of a stream: the modules of its fold and types, and its options.

    The modules are those of the transform with its bases, of its types and of the decoder, and those of the user that
    they import; none of lockstep's own, and none of other installed packages. Of the transform it is the class, which
    may be one of several in a module, and what its instance was made with.
    """
    types = (*type(stream.transform).__mro__, stream.types.row, stream.types.state, type(stream.decoder))
    types = (*types, *(lookup.row for lookup in stream.lookups))
    digest = hashlib.sha256()
    for content in sorted(_read_modules({str(getattr(each, "__module__", "")) for each in types})):
        digest.update(hashlib.sha256(content).digest())
    fold = {type(stream.transform).__qualname__: vars(stream.transform)}
    inline = [each.rule for each in find_inline_rules(stream.rules, None)]
    rules = (*inline, stream.limits.message_bytes)
    for option in (stream.decoder, stream.integrity, stream.event_time, *stream.lookups, fold, *rules):
        digest.update(_ADDRESS.sub("", _describe(option)).encode())
    return digest.hexdigest()


def _describe(option: object) -> str:
    """A text that is the same in every process; the order of sets is not."""
    if isinstance(option, Mapping):
        named = cast("Mapping[object, object]", option)
        return "; ".join(sorted(f"{name}: {_describe(each)}" for name, each in named.items()))
    if isinstance(option, (set, frozenset, list, tuple)):
        parts = [_describe(each) for each in cast("Collection[object]", option)]
        if isinstance(option, (set, frozenset)):
            parts.sort()
        return f"[{', '.join(parts)}]"
    return format_source(option, with_defaults=True)


def _read_modules(names: set[str]) -> Iterator[bytes]:
    """The source of some modules of the user and of the user's modules that they import, each once."""
    packages = {_package(name) for name in names}
    met = set[str]()
    while names := {name for name in names if name not in met and _is_of_users(name)}:
        met |= names
        sources = dict[str, bytes]()
        for name in names:
            # Modules of other installed packages have no part in the digest.
            file = _find_source(name, packages)
            if file is not None:
                sources[name] = file.read_bytes()
        yield from sources.values()
        names = set()
        for name, source in sources.items():
            names.update(_list_imports(name, source))


def _find_source(name: str, packages: set[str]) -> Path | None:
    """The file of an imported module, unless it belongs to an installed package that is not one of these."""
    file = getattr(sys.modules.get(name), "__file__", None)
    is_installed = file is not None and not INSTALLED.isdisjoint(Path(file).parts)
    if file is None or (is_installed and _package(name) not in packages):
        return None
    return Path(file)


def _list_imports(name: str, source: bytes) -> Iterator[str]:
    """The imported modules that the source of a module names, with those of the packages around them."""
    package = sys.modules[name].__package__ or ""
    file = sys.modules[name].__file__ or ""
    if not file.endswith(".py"):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in sys.modules)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            modules = (origin, *(f"{origin}.{alias.name}" for alias in node.names))
            yield from (module for module in modules if module in sys.modules)


INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of an object without a text form; it differs between processes."""


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_of_users(module: str) -> bool:
    package = _package(module)
    return package != "lockstep" and package not in sys.stdlib_module_names and package != "msgspec"
