"""The error classes of the package, which are known only after every module is imported."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import lockstep
from lockstep.errors import LockstepError


def below(kind: type[LockstepError]) -> list[type[LockstepError]]:
    own = [each for each in kind.__subclasses__() if not each.__name__.startswith("_")]
    return [*own, *(deeper for each in own for deeper in below(each))]


@pytest.fixture(scope="session")
def kinds() -> dict[str, type[LockstepError]]:
    """Return every public error class of the package, by name, without the classes of tests."""
    for module in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
        importlib.import_module(module.name)
    found: list[type[LockstepError]] = [LockstepError, *below(LockstepError)]
    return {kind.__name__: kind for kind in found if kind.__module__.startswith("lockstep.")}
