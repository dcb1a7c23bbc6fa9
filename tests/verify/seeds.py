"""All seeds: violations that a proof must find, each put by chance somewhere into a copy of a good table."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.verify import seeds_of_rows as rows
from tests.verify import seeds_of_side_tables as sides
from tests.verify.forging import Forged
from tests.verify.seeds_of_rows import Found

SEEDS: tuple[Callable[[Forged, random.Random], Found], ...] = (
    *(rows.dropped_row, rows.doubled_row, rows.swapped_rows, rows.changed_value, rows.wrong_topic_id),
    *(rows.half_batch, rows.file_gone, rows.batch_twice, rows.row_where_none_belongs),
    *(sides.stale_state, sides.state_of_another_partition, sides.state_bytes_changed, sides.state_forgotten),
    *(sides.side_file_missing, sides.side_file_foreign, sides.ledger_row_extra, sides.ledger_row_missing),
    *(sides.ledger_row_of_another_batch, sides.wrong_count, sides.wrong_suspension, sides.start_moved),
    *(sides.ranges_overlap, sides.end_moved, sides.hole_hidden, sides.hole_resized, sides.hole_of_another_cause),
    *(sides.quarantine_row_missing, sides.quarantine_row_twice, sides.quarantine_row_changed),
    *(sides.in_quarantine_and_in_rows, sides.hole_said_to_be_expired),
)
