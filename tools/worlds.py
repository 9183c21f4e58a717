"""Runs random clusters under all laws and tells what they broke: `python tools/worlds.py FIRST [END]`.

One seed alone is told in full. Run it with the project's environment; it ends with 1 if a law was broken.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from properties.worlds import told_of_cluster


def main(first: int, end: int) -> int:
    """Run the clusters of seeds from the first to before the end."""
    broken = 0
    for seed in range(first, end):
        told = _told(seed)
        if told:
            broken += 1
            sys.stdout.write(f"seed {seed}: {told}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{end - first} worlds, {broken} of them broke a law\n")
    return 1 if broken else 0


def _told(seed: int) -> str:
    try:
        return told_of_cluster(seed)
    except AssertionError as error:
        return str(error)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(given[0], given[1] if len(given) > 1 else given[0] + 1))
