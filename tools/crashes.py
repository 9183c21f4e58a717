"""Lets the platform of every small world with nodes crash after each of its writes in turn: `python tools/crashes.py`.

Run it with the project's environment; it ends with 1 if some end differs from the one without a crash.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim_worlds.small_worlds import WORLDS, play


def main() -> int:
    """Try them all."""
    differing = 0
    for name in WORLDS:
        end, writes = play(name)
        for count in range(1, writes + 1):
            again, _ = play(name, [count])
            if again != end:
                differing += 1
                sys.stdout.write(f"{name}, crash after write {count}: {again}\n")
        sys.stdout.write(f"{name}: {writes} writes\n")
        sys.stdout.flush()
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
