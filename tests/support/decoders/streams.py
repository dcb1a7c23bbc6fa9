"""The stream of panels with each decoder. Executors import it by name."""

from __future__ import annotations

from lockstep import NoIntegrity, Sequence, Stream, Strict, Topics
from lockstep.decoders import Avro, Decoder, Protobuf
from lockstep.integrity.base import IntegrityClass
from tests.support.decoders.panel_pb2 import Snapshot as ProtoSnapshot
from tests.support.decoders.panel_pb2 import Update as ProtoUpdate
from tests.support.decoders.readings import Panel, Panels, ProtoPanels, Reading, Snapshot, Update


def avro_panels(
    pattern: str, integrity: IntegrityClass | None = None, decoder: Decoder | None = None
) -> Stream[Snapshot | Update, Panel, Reading]:
    """Return panels in Avro, over the topics of one test."""
    return Stream(
        name="panels",
        topics=Topics(pattern=pattern),
        transform=Panels(),
        integrity=integrity or Strict(evidence=Sequence()),
        decoder=decoder or Avro(),
    )


def protobuf_panels(pattern: str) -> Stream[ProtoSnapshot | ProtoUpdate, Panel, Reading]:
    """Return panels in Protobuf, over the topics of one test."""
    return Stream(
        name="panels",
        topics=Topics(pattern=pattern),
        transform=ProtoPanels(),
        integrity=Strict(evidence=Sequence()),
        decoder=Protobuf(),
    )


BEST_EFFORT = NoIntegrity()
