"""A stream as a component of Dagster's `dg`: for projects whose definitions are loaded from folders."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from dagster import (
    Component,
    ComponentLoadContext,
    Definitions,
    Model,
    Resolvable,
    Scaffolder,
    ScaffoldRequest,
    ScheduleDefinition,
    in_process_executor,
    mem_io_manager,
    scaffold_with,
)
from dagster.components.scaffold.scaffold import NoParams  # it has no other address
from pydantic import Field

from lockstep.errors import DeclarationError
from lockstep.operations.project import find_template
from lockstep.operations.project_streams import name_in_definitions, write_example

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

_SCHEDULES = {
    "compaction": "compaction_schedules",
    "housekeeping": "housekeeping_schedules",
    "quality": "checks_schedules",
    "export": "export_schedules",
    "current": "current_schedules",
    "delivery": "delivery_schedules",
    "rotation": "rotation_schedules",
}
"""Functions of a stream and the settings, by their module in jobs/."""


class StreamScaffolder(Scaffolder[NoParams]):
    """Writes the example stream of `lockstep init` under the name of the folder, with its test."""

    def scaffold(self, request: ScaffoldRequest[NoParams]) -> None:
        """Write the files, and name the stream in the definitions.py of `lockstep init`, if the project has it.

        Raises:
            NewStreamRefused: The name cannot be used.
        """
        folder = request.target_path
        root = request.project_root or Path.cwd()
        parts = folder.relative_to(root).parts
        if parts[0] == "src":
            parts = parts[1:]
        module = ".".join(parts)
        write_example(folder, module, request.type_name, root / "tests" / f"test_{folder.name}.py")
        name_in_definitions(root, folder.name)


@scaffold_with(StreamScaffolder)
class StreamComponent(Component, Model, Resolvable):
    """A stream of lockstep: its topics, table, ledger, checks, jobs, schedules and sensors.

    The sensors of a project read all its streams. So the first component of a project builds the definitions of all.
    """

    stream: str = Field(description="The stream, as module.name: my_project.defs.readings.readings")

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """The definitions of all streams of the project, or none if another component builds them."""
        components = context.component_tree.get_all_components(of_type=StreamComponent)
        names = sorted(each.stream for each in components)
        for name, following in pairwise(names):
            if name == following:
                raise DeclarationError("stream", name, "is that of two components", "remove one of the two defs.yaml")
        if self.stream != names[0]:
            return Definitions()
        return make_definitions([load_stream(name) for name in names])


def load_stream(name: str) -> AnyStream:
    """The stream at `module.name`.

    Raises:
        DeclarationError: The module does not exist, or has no stream of this name.
    """
    from lockstep.declare.stream import Stream

    module, _, attribute = name.rpartition(".")
    try:
        stream = getattr(import_module(module), attribute, None)
    except (ModuleNotFoundError, ValueError) as error:
        raise DeclarationError("stream", name, f"cannot be imported: {error}", "write it as module.name") from error
    if not isinstance(stream, Stream):
        step = f"name a Stream of {module}: stream: {module}.NAME"
        raise DeclarationError("stream", name, f"has the type {type(stream).__name__}, not Stream", step)
    return stream


def make_definitions(streams: Sequence[AnyStream]) -> Definitions:
    """The definitions that definitions.py of a new project makes of these streams; derived tables need that file."""
    from lockstep.orchestration.definitions import make_assets, make_stream_checks
    from lockstep.orchestration.spark_resource import SparkResource
    from lockstep.settings import load_settings

    settings = load_settings()
    schedules = _make_schedules(streams, settings)
    streaming_jobs = [load_wiring("jobs", "streaming").streaming_job(stream) for stream in streams]
    # Dagster changes the metadata of each job here: schedules and sensors need the objects that are in `jobs`.
    jobs = {schedule.job.name: schedule.job for schedule in schedules if schedule.has_job}
    checks_jobs = [jobs[load_wiring("jobs", "quality").checks_job(stream).name] for stream in streams]
    return Definitions(
        assets=make_assets(streams, (), settings, owners=()),
        asset_checks=list(chain.from_iterable(make_stream_checks(stream, settings) for stream in streams)),
        jobs=[*streaming_jobs, *jobs.values(), *load_wiring("jobs", "hosts").host_jobs(streams, settings)],
        schedules=[*schedules, *load_wiring("jobs", "hosts").host_schedules(settings)],
        sensors=[
            load_wiring("sensors", "topics").topics_sensor(streams, streaming_jobs, settings),
            load_wiring("sensors", "supervisor").supervisor_sensor(streams, streaming_jobs, settings),
            load_wiring("sensors", "health").health_sensor(streams, checks_jobs, settings),
            *load_wiring("sensors", "hosts").host_sensors(streams, settings),
        ],
        resources={"spark": SparkResource(), "io_manager": mem_io_manager},
        executor=in_process_executor,
    )


def _make_schedules(streams: Sequence[AnyStream], settings: Settings) -> list[ScheduleDefinition]:
    schedules: list[ScheduleDefinition] = [load_wiring("jobs", "pruning").pruning_schedule(streams, settings, ())]
    for module, function in _SCHEDULES.items():
        make = getattr(load_wiring("jobs", module), function)
        for stream in streams:
            schedules += make(stream, settings)
    return schedules


@cache
def load_wiring(folder: str, name: str) -> ModuleType:
    """A module of jobs/ or sensors/, as `lockstep init` writes it into a project."""
    spec = spec_from_file_location(f"lockstep_{folder}_{name}", find_template() / folder / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"no module {folder}.{name}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
