"""The code location of the order books as an `Ordered` stream, which tolerates deleted and re-created topics.

They are declared as `Strict`, and the deletion of a topic that was read halts a strict stream.
"""

from __future__ import annotations

import dataclasses

from dagster import Definitions, in_process_executor

from assets.order_books import order_books
from jobs.streaming import streaming_job
from lockstep import Ordered
from lockstep.orchestration.definitions import make_stream_assets
from lockstep.orchestration.spark_resource import SparkResource
from lockstep.settings import load_settings
from sensors.supervisor import supervisor_sensor
from sensors.topics import topics_sensor

STREAM = dataclasses.replace(order_books, integrity=Ordered())
SETTINGS = load_settings()
JOBS = [streaming_job(STREAM)]

defs = Definitions(
    assets=make_stream_assets(STREAM, SETTINGS, owners=()),
    jobs=JOBS,
    sensors=[topics_sensor([STREAM], JOBS, SETTINGS), supervisor_sensor([STREAM], JOBS, SETTINGS)],
    resources={"spark": SparkResource()},
    executor=in_process_executor,
)
