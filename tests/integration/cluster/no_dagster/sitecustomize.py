"""First on an executor's import path: an import of dagster fails, and the error names the module."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = Path(os.environ["NO_DAGSTER_PROOFS"])


class _NoDagster(MetaPathFinder):
    """Refuses dagster before other finders run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0].startswith("dagster"):
            raise ImportError(f"{fullname} is asked for on an executor")
        return None


def _prove() -> None:
    """Write a file if this interpreter refuses dagster; the tests require such files."""
    try:
        import dagster  # noqa: F401
    except ImportError:
        (_FOLDER / f"refused-{os.getpid()}").touch()


sys.meta_path.insert(0, _NoDagster())
_prove()
