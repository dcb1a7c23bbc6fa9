"""The component of Dagster's `dg`: `dg scaffold defs lockstep.Stream NAME` writes a stream that works.

`dg` imports this module for each of its commands, so it imports neither Spark nor the wiring of streams.
"""

from lockstep.orchestration.stream_component import StreamComponent as Stream

__all__ = ["Stream"]

# dg lists the component by this module, and takes the module and the name of its class as a second name.
Stream.__module__ = "lockstep"
Stream.__name__ = "Stream"
