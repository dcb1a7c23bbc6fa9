"""Makes the archives of Java classes for this environment: that of Spark, and that of the local Kafka.

    python -m lockstep.features.localdev.class_archives

`make setup` runs it; a second run has nothing to do.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.features.localdev.broker import Broker
from lockstep.features.localdev.producer import create_topic
from lockstep.spark.class_archive import find_archive, make_archive, name_archive
from lockstep.spark.jars import resolve_jars
from lockstep.spark.java import require_java
from lockstep.spark.spark_archive import make_spark_archive


def make_kafka_archive() -> Path:
    """Make that of the local Kafka, in the folder of its jars, by a broker that creates a topic.

    Raises:
        EnvironmentProblem: No Java, no jars, or no archive was made.
    """
    jars = resolve_jars("kafka")[0].parent
    return make_archive(jars, name_archive("kafka", jars, require_java()), _train_kafka)


def find_kafka_archive() -> Path | None:
    """That of the local Kafka; None if it was not made.

    Raises:
        EnvironmentProblem: No Java, or no jars.
    """
    jars = resolve_jars("kafka")[0].parent
    return find_archive(jars, name_archive("kafka", jars, require_java()))


def _train_kafka(options: tuple[str, ...]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker.start(Path(folder) / "kafka", java_options=options) as broker,
    ):
        create_topic(broker.bootstrap_servers, "archived")


def main() -> int:
    """Make both; without them a start takes some seconds more, so that a failure is only reported."""
    try:
        for archive in (make_kafka_archive(), make_spark_archive()):
            sys.stdout.write(f"{archive}\n")
    except LockstepError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
