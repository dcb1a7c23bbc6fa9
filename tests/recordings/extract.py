"""Make the small recordings in binance_l2/ from the complete recordings.

    python tests/recordings/extract.py SOURCE DESTINATION

The complete recordings have 10 MB. The extract keeps, with the bytes of each kept line unchanged:

* every snapshot and every depth difference received before KEPT_UNTIL, including stale differences: a replay
  of the recording "as received" needs them;
* the best-price tickers that an oracle compares with a rebuilt book: for each kept difference the
  last ticker whose `u` is not beyond the difference's.

Trades, other tickers and later lines are dropped. The order is kept. The gzip header holds neither time nor name, so
the same source makes the same file. Needs the standard library only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from bisect import bisect_right
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

# The two minutes after midnight contain the file change and the two missing tickers of spot_btcusdt (00:01:04 and
# 00:01:05). All five recorded minutes would make 7 MB; these two make 4.7 MB.
KEPT_UNTIL = datetime(2024, 8, 9, 0, 2, tzinfo=UTC)
KEPT_UNTIL_NS = int(KEPT_UNTIL.timestamp()) * 1_000_000_000


class Line(NamedTuple):
    """A recorded line: its bytes, receive time in ns, kind, and the last update id that it reflects."""

    raw: bytes
    received_ns: int
    kind: str
    last_id: int


class Extracted(NamedTuple):
    """The extraction of one file."""

    name: str
    source_sha256: str
    source_lines: Counter[str]
    kept_lines: Counter[str]


def parsed(raw: bytes) -> Line:
    """Parse a line. The source has four kinds: snapshot, difference, ticker, trade."""
    received, _, text = raw.partition(b" ")
    message = json.loads(text)
    if "lastUpdateId" in message:
        return Line(raw, int(received), "snapshot", message["lastUpdateId"])
    channel = message["stream"].split("@")[1]
    kind = {"depth": "difference", "bookTicker": "ticker", "trade": "trade"}[channel]
    return Line(raw, int(received), kind, message["data"].get("u", 0))


def read(path: Path) -> list[Line]:
    """Read all lines of one recording."""
    with gzip.open(path) as recording:
        return [parsed(raw) for raw in recording]


def is_book(line: Line) -> bool:
    """Whether the line belongs to the book and was received before KEPT_UNTIL."""
    return line.kind in {"snapshot", "difference"} and line.received_ns < KEPT_UNTIL_NS


def needed_tickers(lines: Iterable[Line]) -> set[int]:
    """Return the `u` of each ticker that is the last not beyond some kept difference."""
    lines = list(lines)
    known = sorted(line.last_id for line in lines if line.kind == "ticker")
    places = {bisect_right(known, line.last_id) for line in lines if is_book(line)}
    return {known[place - 1] for place in places if place}


def write(path: Path, lines: Iterable[Line]) -> None:
    """Write a gzip file whose bytes depend on the lines alone."""
    with path.open("wb") as plain, gzip.GzipFile("", "wb", 9, plain, mtime=0) as packed:
        packed.writelines(line.raw for line in lines)


def extract_book(days: Iterable[Path], destination: Path) -> list[Extracted]:
    """Extract all files of one book; a ticker may be in another file than its difference."""
    recorded = {path: read(path) for path in days}
    needed = needed_tickers(line for lines in recorded.values() for line in lines)
    done = []
    for path, lines in recorded.items():
        kept = [line for line in lines if is_book(line) or (line.kind == "ticker" and line.last_id in needed)]
        write(destination / path.name, kept)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        counts = (Counter(line.kind for line in some) for some in (lines, kept))
        done.append(Extracted(path.name, digest, *counts))
    return done


def shown(counts: Counter[str]) -> str:
    """Describe counts by kind."""
    kinds = ("snapshot", "difference", "ticker", "trade")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds)


def provenance(original: str, done: Iterable[Extracted]) -> str:
    """Return the text of the source, followed by the description of the extracts."""
    files = "\n".join(
        f"{one.name}\n  source: {shown(one.source_lines)}; sha256 {one.source_sha256}\n"
        f"  kept:   {shown(one.kept_lines)}"
        for one in done
    )
    return (
        f"What the source says of itself:\n\n{original.strip()}\n\n"
        "What this folder holds: extracts of those files, made by ../extract.py (its docstring says\n"
        f"what is kept and why). Kept until {KEPT_UNTIL:%Y-%m-%d %H:%M} UTC; no trades; only the tickers\n"
        "that the oracle looks at; the bytes of each kept line and the order of lines unchanged.\n"
        "LICENSE.hftbacktest is the licence of the source repository.\n\n"
        f"{files}\n"
    )


def main(source: Path, destination: Path) -> None:
    """Extract every book of a source folder, and write the provenance."""
    destination.mkdir(parents=True, exist_ok=True)
    books = sorted({path.name.rpartition("_")[0] for path in source.glob("*.gz")})
    done = [one for book in books for one in extract_book(sorted(source.glob(f"{book}_*.gz")), destination)]
    original = (source / "PROVENANCE.txt").read_text(encoding="utf-8")
    (destination / "PROVENANCE.txt").write_text(provenance(original, done), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/recordings/extract.py SOURCE DESTINATION")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
