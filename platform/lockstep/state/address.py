"""Addresses of state: which state of which partition, and where its newest section lies.

Offsets alone do not name a state: a retried task may reach the same offset with another result.
So an address names the committed section, and a section's file name ends in a uuid drawn by the
task that wrote it: two sections are never called the same.
"""

from __future__ import annotations

import msgspec


class SectionRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one partition's section lies in a durable state file.

    Attributes:
        file: Name of the file, relative to the stream's state folder.
        start: First byte of the section.
        length: Bytes of the section.
    """

    file: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.file} bytes {self.start} to {self.start + self.length}"


class StateAddress(msgspec.Struct, frozen=True, gc=False):
    """Exactly one state of one partition: what a plan sends to a task.

    Attributes:
        generation: The lineage of batches that reads it. Its sections are of this generation or,
            after a rewind, of an earlier one.
        topic_id: Kafka's id of the topic's life.
        partition: Partition number.
        next_offset: The state is the fold of all offsets before this one.
        section: The last section that changed the state; None while the state is empty. Offsets
            that change nothing move `next_offset` and leave the section as it is.
    """

    generation: int
    topic_id: str
    partition: int
    next_offset: int
    section: SectionRef | None

    def __str__(self) -> str:
        partition = f"{self.topic_id}/{self.partition}"
        return f"state of {partition} before offset {self.next_offset} (generation {self.generation})"


def empty_state(generation: int, topic_id: str, partition: int, next_offset: int) -> StateAddress:
    """The address of a partition that has no state yet."""
    return StateAddress(generation, topic_id, partition, next_offset, None)


def moved(address: StateAddress, next_offset: int, section: SectionRef | None) -> StateAddress:
    """The address after a range: a later offset, and the section that the range wrote or kept."""
    return msgspec.structs.replace(address, next_offset=next_offset, section=section)
