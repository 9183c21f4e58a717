"""Kills the leader of two operators repeatedly during the guide: `python tools/operator_kills.py --kills 50`.

kubectl plays the guide of the reference architecture, until the number of kills is reached. The platform runs only the
API server; the operators run the controllers, with the permissions of their installation. SIGKILL ends the leader, the
standby takes over, and a new standby starts. Checks:

- No Workload gets quota twice without an eviction.
- No Workload is created twice or lost.
- Quota holds at every revision.
- The API server forbids no request of the operators.

Use the project's environment. Exits with 1 if a check fails.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from e2e_platform.leader_kills import play_killed_guide


def main() -> int:
    """Run guides until the number of kills is reached, and print their results; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--speed", type=float, default=20.0, help="speed of time on the platform")
    args = parser.parse_args()
    folder, steps = examples_folder(), guide_steps_up_to(None)
    assert folder is not None, "the folder examples/ is missing"
    remaining, faults = args.kills, 0
    while remaining > 0:
        guide = Guide(folder, steps)
        with TemporaryDirectory() as work:
            outcome = play_killed_guide(guide, steps, Path(work), remaining, args.speed)
        remaining -= outcome.kills
        faults += len(outcome.faults)
        counts = f"{outcome.kills} kills, {outcome.workloads} Workloads, {outcome.evictions} evictions"
        print_line(f"{counts}: {len(outcome.faults)} faults")
        for fault in outcome.faults:
            print_line(fault)
    return 1 if faults else 0


def print_line(line: str) -> None:
    """Write a line to stdout, and flush."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
