"""What a set of processes has used: CPU time to the nanosecond, resident memory.

The CPU time of a process comes from its own CPU clock (clock_getcpuclockid(3)), which counts all its
threads, dead ones included, in user and kernel mode, and does not round to the 10 ms of /proc/PID/stat.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

CPUCLOCK_SCHED = 2  # linux/posix-timers.h: the scheduler's clock, of the process and not of one thread


def cpu_clock(pid: int) -> int:
    """The id of a process's CPU clock, as the kernel encodes it."""
    return (~pid << 3) | CPUCLOCK_SCHED


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds used so far by these processes together."""
    return sum(time.clock_gettime_ns(cpu_clock(pid)) for pid in pids) / 1e9


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes together; pages they share are counted in each."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) * 1024
    return total
