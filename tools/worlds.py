"""Simulates random clusters, and reports violated invariants: `python tools/worlds.py FIRST [END]`.

`--kinds` simulates queues with jobs of all kinds, without nodes. `--conflicts SHARE` rejects this share of the
platform's writes with a conflict. `--crash-every WRITES` crashes the platform repeatedly, each time after this number
of writes. Use the project's environment. Exits with 1 if a world violates an invariant.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from properties.kind_worlds import kind_violations
from properties.worlds import cluster_violations


def main() -> int:
    """Simulate the worlds of the seeds FIRST to END - 1; if END is omitted, only the world of the seed FIRST."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int, nargs="?")
    parser.add_argument("--conflicts", type=float, default=0.0, metavar="SHARE", help="from 0 to 1")
    parser.add_argument("--crash-every", type=int, default=0, metavar="WRITES")
    parser.add_argument("--kinds", action="store_true", help="jobs of all kinds, without nodes")
    args = parser.parse_args()
    seeds = range(args.first, args.first + 1 if args.end is None else args.end)
    failed = 0
    for seed in seeds:
        violations = _find_violations(seed, args)
        if violations:
            failed += 1
            sys.stdout.write(f"seed {seed}: {violations}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(seeds)} worlds, {failed} with violations\n")
    return 1 if failed else 0


def _find_violations(seed: int, args: argparse.Namespace) -> str:
    check = kind_violations if args.kinds else cluster_violations
    try:
        return check(seed, conflicts=args.conflicts, crash_every=args.crash_every)
    except AssertionError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
