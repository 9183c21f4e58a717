"""Runs random clusters under all laws and tells what they broke: `python tools/worlds.py FIRST [END]`.

With `--conflicts SHARE` so many writes of the platform meet a conflict, with `--crash-every WRITES` it crashes after so
many of them, again and again. Run it with the project's environment; it ends with 1 if a law was broken.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from properties.worlds import told_of_cluster


def main() -> int:
    """Run the clusters of seeds from the first to before the end; one seed alone if there is no end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int, nargs="?")
    parser.add_argument("--conflicts", type=float, default=0.0, metavar="SHARE", help="from 0 to 1")
    parser.add_argument("--crash-every", type=int, default=0, metavar="WRITES")
    args = parser.parse_args()
    seeds = range(args.first, args.first + 1 if args.end is None else args.end)
    broken = 0
    for seed in seeds:
        reported = _reported(seed, args.conflicts, args.crash_every)
        if reported:
            broken += 1
            sys.stdout.write(f"seed {seed}: {reported}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(seeds)} worlds, {broken} of them broke a law\n")
    return 1 if broken else 0


def _reported(seed: int, conflicts: float, crash_every: int) -> str:
    try:
        return told_of_cluster(seed, conflicts=conflicts, crash_every=crash_every)
    except AssertionError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
