"""The one door to stored files: everything under the table root is written, read, listed and deleted here.

Outside of this package such a path is an address: it is joined, compared and named in errors, and never opened.
Libraries that open files themselves (delta-rs, Arrow, Spark) are given `Storage.uri` or `Storage.open_source`.

Files of one machine that nothing outlives (spilled rows, runs of a sort) are `Scratch`; local copies of state have a
separate format and locks (state/local_store.py).
"""

from lockstep.storage.base import FileStatus, NeedsFileSystem, NotWritten, PendingFile, Storage
from lockstep.storage.find import create_owned, find_storage, require_file_system
from lockstep.storage.local import (
    LocalStorage,
    Scratch,
    make_private_folder,
    require_own_folder,
    require_writable_folder,
)
from lockstep.storage.named_files import PathRefused, find_fault, find_named_files, read_named_file

__all__ = [
    "FileStatus",
    "LocalStorage",
    "NeedsFileSystem",
    "NotWritten",
    "PathRefused",
    "PendingFile",
    "Scratch",
    "Storage",
    "create_owned",
    "find_fault",
    "find_named_files",
    "find_storage",
    "make_private_folder",
    "read_named_file",
    "require_file_system",
    "require_own_folder",
    "require_writable_folder",
]
