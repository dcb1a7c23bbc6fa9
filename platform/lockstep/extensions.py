"""Commands and alarms of an installation: the modules that the setting `extensions` names import from here.

docs/how-to-add/command.md and alarm.md show an example of each.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lockstep.cli.app import AsJson, Panel, StreamName, open_handle, register_command
from lockstep.cli.output import make_facts, make_grid, print_answer
from lockstep.declare.stream import AnyStream
from lockstep.feature import Feature

if TYPE_CHECKING:
    from lockstep.operations.alarms import Alarm, AlarmSeverity, HealthFacts

__all__ = [
    "Alarm",
    "AlarmSeverity",
    "AnyStream",
    "AsJson",
    "Feature",
    "HealthFacts",
    "Panel",
    "StreamName",
    "make_facts",
    "make_grid",
    "open_handle",
    "print_answer",
    "register_command",
]


def __getattr__(name: str) -> object:
    """Import the names of alarms when they are used: they load the readers of tables."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("lockstep.operations.alarms"), name)
