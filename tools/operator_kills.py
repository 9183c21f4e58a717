"""Kills the leader of two operators under the guide, again and again: `python tools/operator_kills.py --kills 50`.

The guide of the reference architecture is played by kubectl, as often as it takes, on a platform that leaves to
operators what they do on a cluster; they have the rights that they are installed with, and no more. Whoever leads is
killed without a word, another takes over, and a third waits then. No Workload may get quota twice without having been
evicted, none may be made twice or be lost, quota holds at every revision, and nothing is asked for that is not allowed.

Run it with the project's environment; it ends with 1 if that is not so.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.sim.guide import Guide, examples_folder, played_steps
from e2e_platform.leader_kills import killed_guide


def main() -> int:
    """Kill and look; tell of each guide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--speed", type=float, default=20.0, help="how fast time runs: kills cost seconds of the clock")
    args = parser.parse_args()
    folder, steps = examples_folder(), played_steps(None)
    assert folder is not None, "the examples are beside the package"
    left, faults = args.kills, 0
    while left > 0:
        guide = Guide(folder, steps)
        with TemporaryDirectory() as work:
            found = killed_guide(guide, steps, Path(work), left, args.speed)
        left -= found.kills
        faults += len(found.faults)
        tell(
            f"{found.kills} kills, {found.workloads} Workloads, {found.evictions} evictions: {len(found.faults)} faults"
        )
        for fault in found.faults:
            tell(fault)
    return 1 if faults else 0


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
