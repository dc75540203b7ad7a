"""The one clock of the process. Everything that measures or waits takes its time from here or from an argument.

Pure floors (openai, routing, fleet) never import this: they are given `now_s`.
"""

from __future__ import annotations

from time import monotonic
from time import process_time as processor_s

__all__ = ["monotonic", "processor_s"]
