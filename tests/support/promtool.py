"""promtool, Prometheus' own checker: a part of Debian's package prometheus.

Owns where it is found and what becomes of a test without it: the test says that it checked less; with REQUIRE_PROMTOOL
set it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings

import pytest

MISSING = "promtool is not installed (apt-get install prometheus): rules and metrics were only parsed"
PROMTOOL = shutil.which("promtool") or shutil.which("/usr/bin/promtool")


def promtool(*arguments: object, stdin: bytes | None = None) -> bool:
    """Run it and fail the test with its words unless all is well. False, with a warning, where it is not there."""
    if PROMTOOL is None:
        if os.environ.get("REQUIRE_PROMTOOL"):
            pytest.fail(MISSING)
        warnings.warn(MISSING, stacklevel=2)
        return False
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], input=stdin, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return True
