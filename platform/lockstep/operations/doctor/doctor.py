"""Checks the environment of the streams: this machine, the table root, Kafka, its topics, parts of features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
from pydantic import ValidationError

from lockstep.addresses import is_in_object_store
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError, StoreFailed
from lockstep.feature import load_parts
from lockstep.operations.doctor import machine
from lockstep.operations.doctor.definitions import check_definitions
from lockstep.operations.doctor.diagnosis import Diagnosis, Level, make_error, make_warning
from lockstep.operations.doctor.kafka import check_cluster, check_topics
from lockstep.operations.doctor.object_store import check_object_store
from lockstep.operations.inspect.undeclared import find_undeclared_tables
from lockstep.operations.inspect.whole_tables import list_costly_streams
from lockstep.settings import KafkaSettings, Settings


class Report(msgspec.Struct, frozen=True):
    """Results of all checks.

    Attributes:
        brokers: Addresses of the brokers.
        findings: All findings, good and bad, in a fixed order.
    """

    brokers: str
    findings: tuple[Diagnosis, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.level is not Level.ERROR for finding in self.findings)


def run_diagnoses(
    settings: Settings, streams: Callable[[], Mapping[str, AnyStream]], workspace: Path | None = None
) -> Report:
    """Run all checks; a failed check is a finding and never hides the others.

    Args:
        settings: Addresses of Kafka and the tables.
        streams: Loads the declared streams; their classes determine the topic checks.
        workspace: The folder of Dagster's workspace file; by default its definitions are not loaded.
    """
    looks: dict[str, Callable[[], Iterator[Diagnosis]]] = {
        "Java": machine.check_java,
        "lockstep-native": machine.check_extension,
        "jars": lambda: machine.check_jars(settings.table_root),
        "ports": machine.check_ports,
        "web servers": machine.check_web_servers,
        "table root": lambda: _check_table_root(settings.table_root),
        "local root": lambda: machine.check_local_root(settings.local_root),
        "temporary folder": machine.check_temporary_folder,
        "definitions": lambda: iter(()) if workspace is None else check_definitions(workspace),
        "tables": lambda: _find_undeclared(settings.table_root, streams),
        "states": lambda: _find_costly_states(settings.table_root, streams),
        "Kafka": lambda: _kafka(settings.kafka, streams),
        "features": lambda: _check_features(settings, streams),
    }
    diagnoses = list[Diagnosis]()
    for name, look in looks.items():
        is_lost = any(each.check == "table root" and each.level is Level.ERROR for each in diagnoses)
        if name in {"tables", "states"} and is_lost and is_in_object_store(settings.table_root):
            continue  # a store that does not answer is not waited for twice
        diagnoses += _safely(name, look)
    return Report(settings.kafka.bootstrap_servers, tuple(diagnoses))


def _check_table_root(root: Path) -> Iterator[Diagnosis]:
    if is_in_object_store(root):
        return check_object_store(root)
    return machine.check_table_root(root)


def _find_undeclared(root: Path, streams: Callable[[], Mapping[str, AnyStream]]) -> Iterator[Diagnosis]:
    for found in find_undeclared_tables(streams(), root):
        yield make_warning(f"table of {found.name}", found.problem, found.next_step)


def _find_costly_states(root: Path, streams: Callable[[], Mapping[str, AnyStream]]) -> Iterator[Diagnosis]:
    for name, problem in list_costly_streams(streams(), root):
        yield make_warning(f"state of {name}", problem, "docs/state.md#large-tables-in-a-state-mapstate")


def _kafka(kafka: KafkaSettings, streams: Callable[[], Mapping[str, AnyStream]]) -> Iterator[Diagnosis]:
    """Wait only once for a cluster that does not answer."""
    yield from check_cluster(kafka)
    yield from check_topics(kafka, streams())


def _check_features(settings: Settings, streams: Callable[[], Mapping[str, AnyStream]]) -> Iterator[Diagnosis]:
    for check in load_parts("diagnoses"):
        yield from check(streams(), settings)


def with_brokers(settings: Settings, brokers: str | None) -> Settings:
    """The settings with other brokers.

    Raises:
        LockstepError: The brokers are not host:port.
    """
    if brokers is None:
        return settings
    try:
        kafka = KafkaSettings.model_validate({**settings.kafka.model_dump(), "bootstrap_servers": brokers})
    except ValidationError as wrong:
        problem = wrong.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise LockstepError(f"--brokers: {problem}", next_step="for example --brokers 127.0.0.1:9092") from None
    return settings.model_copy(update={"kafka": kafka})


def _safely(name: str, look: Callable[[], Iterator[Diagnosis]]) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    try:
        found.extend(look())
    except LockstepError as problem:
        found.append(make_error(name, problem.problem, problem.next_step))
    except StoreFailed as problem:
        found.append(make_error(name, f"{problem.filename}: {problem.strerror}", problem.next_step))
    except OSError as problem:
        found.append(make_error(name, str(problem), "fix the problem that the operating system reports"))
    return found
