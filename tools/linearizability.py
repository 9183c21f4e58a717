"""Checks linearizability of a primary with a standby: `python tools/linearizability.py --histories 500`.

In each history, four clients concurrently create, update, delete, get and list the same objects, and a watch runs. In
some histories, the primary is killed, killed and restarted, stopped and continued, or ended. Checks:

- The operations on each object are linearizable.
- The revision of a write exceeds those of all writes that were acknowledged before.
- The watch, which resumes on the other node, reports each acknowledged write once and in order.
- Each list equals the state at its revision.

A history depends on its seed, except for the timing: `--seed N --histories 1` repeats its operations and fault. Exits
with 1 if a check fails.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz.histories import run_histories
from fuzz.standby_pair import StandbyPair


def main() -> int:
    """Run all histories and print their results; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--fault-percent", type=int, default=30, help="percentage of histories with a fault")
    parser.add_argument("--witness", action="store_true", help="use a witness folder")
    args = parser.parse_args()
    counts, failed = Counter[str](), 0
    seeds = iter(range(args.seed, args.seed + args.histories))
    with TemporaryDirectory() as folder, StandbyPair(Path(folder), has_witness=args.witness) as pair:
        for number, (fault, violations) in enumerate(run_histories(pair, seeds, args.fault_percent), args.seed):
            counts[fault] += 1
            failed += bool(violations)
            print_line(
                f"history {number}: fault {fault}, {len(violations)} violations; {dict(counts)}, {failed} failed"
            )
            for violation in violations:
                print_line(violation)
    return 1 if failed else 0


def print_line(line: str) -> None:
    """Write a line to stdout, and flush."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
