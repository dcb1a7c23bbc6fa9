"""One job per stream: the table alone, without checks, which would wait without end for a never-ending run."""

from dagster import AssetSelection, define_asset_job

from lockstep.declare.stream import AnyStream
from lockstep.orchestration import names
from lockstep.orchestration.definitions import AssetJob


def streaming_job(stream: AnyStream) -> AssetJob:
    """The job that runs a stream until it is stopped."""
    return define_asset_job(
        names.name_stream_job(stream),
        selection=AssetSelection.assets(names.make_table_key(stream)).without_checks(),
        description=f"Runs {stream.name} until it is stopped or handed over.",
        tags=names.NEVER_TOO_LONG,
    )
