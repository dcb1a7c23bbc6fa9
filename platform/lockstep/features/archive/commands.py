"""The archive on the command line."""

from __future__ import annotations

from lockstep.cli.app import AsJson, Panel, StreamName, find_folders, find_stream_or_exit, register_command
from lockstep.cli.output import print_described


@register_command("archive order_books", Panel.INSPECT)
def archive(stream: StreamName, as_json: AsJson = False) -> None:  # noqa: FBT002  # a flag
    """Show extent and size of the archive of a stream: the messages that it keeps for longer than Kafka."""
    from lockstep.features.archive.status import read_archive_status

    print_described(read_archive_status(find_stream_or_exit(stream), find_folders(stream)), as_json=as_json)
