"""Durable state files: one per task and batch, with a section per partition that changed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
import zstandard

from lockstep.state.address import SectionRef, StateAddress
from lockstep.state.section import (
    PREAMBLE_BYTES,
    Change,
    Packed,
    Section,
    SectionHeader,
    StateDamaged,
    check_header,
    decode_header,
    decode_section,
    encode_section,
    header_bytes,
    pack,
)

ZSTD_LEVEL = 1
"""Higher levels cost several times the CPU for a few percent, on data that lives for minutes."""


class StateFileWriter:
    """Writes the state file of one task and batch; no file at all when no partition changed.

    As a context manager it closes on success and abandons on an exception.

    Attributes:
        name: The file's name in the state folder; ends in a uuid drawn here, because a zombie
            task may run beside this one with the same batch and attempt.
        is_durable: Whether all that was added is on disk.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.name = f"{label}-{uuid.uuid4().hex}.state"
        self.is_durable = False
        self._folder = folder
        self._file: BinaryIO | None = None
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)

    @classmethod
    def open(cls, folder: Path, label: str = "state") -> StateFileWriter:
        """Prepare a file in `folder`; `label` names the batch that writes it."""
        return cls(folder, label)

    def pack(self, entries: Iterable[Change]) -> Packed:
        """Compress entries for `add`."""
        return pack(entries, self._compressor)

    def add(self, header: SectionHeader, packed: Packed) -> SectionRef:
        """Append the section of one partition and say where it lies."""
        file = self._file or self._create()
        section = encode_section(msgspec.structs.replace(header, file=self.name), packed, self._compressor)
        ref = SectionRef(self.name, file.tell(), len(section))
        file.write(section)
        return ref

    def close(self) -> None:
        """Bring the file and its folder's entry to disk; only then may anything refer to it."""
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                sync_folder(self._folder)
            except OSError:
                self.abandon()
                raise
            self._file.close()
            self._file = None
        self.is_durable = True

    def abandon(self) -> None:
        """Remove what was written; nothing refers to it."""
        if self._file is not None:
            self._file.close()
            self._file = None
            (self._folder / self.name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _create(self) -> BinaryIO:
        if not self._folder.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        self._file = (self._folder / self.name).open("xb")
        return self._file


def read_section(folder: Path, ref: SectionRef, address: StateAddress) -> Section:
    """Read one section of the chain behind an address.

    Raises:
        StateDamaged: The file is missing, any byte of the section is wrong, or it belongs to
            another partition, a later generation or a later offset than the address.
    """
    place = _place(folder, ref)
    try:
        with (folder / ref.file).open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), ref.length, ref.start)
    except FileNotFoundError:
        raise StateDamaged(place, f"the file of the {address}", "no such file") from None
    if len(data) != ref.length:
        raise StateDamaged(place, f"{ref.length} bytes", f"{len(data)}: the file is cut short")
    section = decode_section(data, place)
    check_header(section.header, place, address)
    if section.header.file not in {ref.file, ""}:  # releases before 0.2 did not say
        raise StateDamaged(place, f"what was written as {ref.file}", section.header.file)
    return section


def read_header(folder: Path, ref: SectionRef) -> SectionHeader:
    """What one section says of itself; its entries are not read.

    Raises:
        StateDamaged: The file is missing, or the section's header is not whole.
    """
    place = _place(folder, ref)
    try:
        with (folder / ref.file).open("rb", buffering=0) as file:
            preamble = os.pread(file.fileno(), PREAMBLE_BYTES, ref.start)
            return decode_header(os.pread(file.fileno(), header_bytes(preamble, place), ref.start), place)
    except FileNotFoundError:
        raise StateDamaged(place, "a durable state file", "no such file") from None


def _place(folder: Path, ref: SectionRef) -> str:
    return f"{folder / ref.file} (bytes {ref.start} to {ref.start + ref.length})"


def sync_folder(folder: Path) -> None:
    """Bring the entries of a folder to disk: a new file's name lives there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
