"""The time since the command started, before Python and its imports."""

import os
import time
from pathlib import Path


def process_age_s() -> float:
    """Return the seconds since the start of this process."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since the machine was booted
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError):  # not Linux
        import psutil

        created: float = psutil.Process().create_time()
        return max(0.0, time.time() - created)
