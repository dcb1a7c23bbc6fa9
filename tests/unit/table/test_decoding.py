"""A table whose first read in a process is by two threads."""

from __future__ import annotations

import subprocess
import sys

FIRST_READ = """
import sys
import threading

from lockstep.table.head import Head, Lineage, Resumption, SideFile

resumed, of_ledger = Resumption(1, 2.0, "why"), SideFile("path", 1, 1, "{}")
head = Head(stream="s", cluster_id="c", lineage=(Lineage(1, 2),), ledger=of_ledger, last_resumption=resumed)
second = threading.Thread(target=Head.decode, args=[head.encode()])


def give_way(frame, event, argument):
    if frame.f_code.co_name == "get_class_annotations" and frame.f_locals["obj"] is not Head and not second.ident:
        second.start()  # while msgspec looks up the types of the fields of a head
        second.join(0.5)


sys.setprofile(give_way)
Head.decode(head.encode())
sys.setprofile(None)
second.join()
"""


def test_two_threads_may_be_the_first_to_read_a_table() -> None:
    ended = subprocess.run([sys.executable, "-c", FIRST_READ], check=False, capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (0, "")
