"""lockstep on live messages with the ready fold, `ColumnFold`; else as `benchmarks.live_side`."""

from __future__ import annotations

from benchmarks.live_side import main
from benchmarks.sensors import ready_sensors

if __name__ == "__main__":
    main(ready_sensors)
