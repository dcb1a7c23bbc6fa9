"""Dagster's code location: the definitions of the current release, or of a copy of the working folder.

A workspace names this module in place of `definitions`. Each process that loads it, of the code location or of a run,
chooses its code once, and imports it from a copy, which nothing changes.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from lockstep.errors import SettingsError
from lockstep.settings import load_settings
from lockstep.user_code.pin import import_from, pin_code

DEFINITIONS = "definitions"


def find_working_folder() -> Path:
    """The folder of definitions.py.

    Raises:
        SettingsError: The import path has none.
    """
    spec = find_spec(DEFINITIONS)
    if spec is None or spec.origin is None:
        raise SettingsError(
            f"no {DEFINITIONS}.py on the import path",
            next_step="name its folder as working_directory of the workspace, or as --working-directory",
        )
    return Path(spec.origin).parent.absolute()


_FOLDER = pin_code(find_working_folder(), load_settings())
import_from(_FOLDER)
_DEFINITIONS = import_module(DEFINITIONS)
globals().update({name: value for name, value in vars(_DEFINITIONS).items() if not name.startswith("_")})
