"""One job per stream: the table alone, without checks, which would wait without end for a never-ending run."""

from dagster import AssetSelection, define_asset_job

from lockstep.dagster import NEVER_TOO_LONG, AnyStream, AssetJob, make_table_key, name_stream_job


def streaming_job(stream: AnyStream) -> AssetJob:
    """The job that runs a stream until it is stopped."""
    return define_asset_job(
        name_stream_job(stream),
        selection=AssetSelection.assets(make_table_key(stream)).without_checks(),
        description=f"Runs {stream.name} until it is stopped or handed over.",
        tags=NEVER_TOO_LONG,
    )
