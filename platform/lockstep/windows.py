"""Folds over windows: tumbling, sliding, by count, by session."""

from lockstep.folds.windows import CountWindows, SessionWindows, SlidingWindows, TumblingWindows, Window, WindowFold

__all__ = [
    "CountWindows",
    "SessionWindows",
    "SlidingWindows",
    "TumblingWindows",
    "Window",
    "WindowFold",
]
