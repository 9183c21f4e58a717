"""A run is the same in each process."""

import os
import subprocess
import sys
from pathlib import Path


def test_events_are_independent_of_hash_seed() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "benchmarks" / "store_events.py"), "--jobs", "60", "--repeat", "0"]
    printed = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("0", "1", "4242")
    ]
    assert printed[0].startswith(b"digest ")
    assert len(set(printed)) == 1
