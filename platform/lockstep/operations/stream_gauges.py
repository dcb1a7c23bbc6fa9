"""Figures of a stream that features add to its metrics."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class StreamGauge(msgspec.Struct, frozen=True):
    """A figure of a stream.

    Attributes:
        name: Name of the metric.
        meaning: Its meaning, as the exporter shows it.
        value: The figure.
        labels: Further labels, besides `stream`; the same for all figures of a name.
    """

    name: str
    meaning: str
    value: float
    labels: Mapping[str, str] = {}
