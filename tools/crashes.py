"""Crashes the platform of each small simulated cluster, after each write in turn: `python tools/crashes.py`.

Use the project's environment. Exits with 1 if a final state differs from the final state without a crash.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim_worlds.small_worlds import WORLDS, play


def main() -> int:
    """Simulate all crashes; return 1 if a final state differs."""
    differing = 0
    for name in WORLDS:
        expected, writes = play(name)
        for count in range(1, writes + 1):
            actual, _ = play(name, [count])
            if actual != expected:
                differing += 1
                sys.stdout.write(f"{name}, crash after write {count}: final state {actual}, expected {expected}\n")
        sys.stdout.write(f"{name}: {writes} writes\n")
        sys.stdout.flush()
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
