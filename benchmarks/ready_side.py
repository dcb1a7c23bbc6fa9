"""lockstep on the workload with the ready fold, `ColumnFold`; else as `benchmarks.lockstep_side`."""

from __future__ import annotations

from benchmarks.lockstep_side import main
from benchmarks.sensors import ready_sensors

if __name__ == "__main__":
    main(ready_sensors)
