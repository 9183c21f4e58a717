"""Replays Kueue's decisions of all recorded scenarios, and reports the divergences that a shadow finds.

    python tools/shadow_oracle.py [NAME...] [--late KIND=SECONDS ...] [--trouble SEED ...]

The shadow follows the decisions in virtual time. `--late` delays the watch of a kind, such as `--late
clusterqueues=1.3`. `--trouble` injects network faults chosen by the seed: each watch lags by a different time of up to
eight seconds, repeats lines, breaks, and in some cases cannot resume; the shadow restarts in the middle.

Use the project's environment. Exits with 1 if the shadow reports a divergence.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND
from differential.recorded_scenarios import packed_cases, shared_cases
from differential.shadow_runs import run_shadow_case
from differential.unreliable_transport import ConnectionFaults, random_connection_faults


def main() -> int:
    """Replay the scenarios; print the divergences and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--late", action="append", default=[], metavar="KIND=SECONDS")
    parser.add_argument("--trouble", action="append", default=[], type=int, metavar="SEED")
    args = parser.parse_args()
    cases = {**packed_cases(), **shared_cases()}
    late = {kind: round(float(by) * SECOND) for kind, _, by in (each.partition("=") for each in args.late)}
    agreed = diverged = reordered = unseen = 0
    troubles = [random_connection_faults(seed) for seed in args.trouble] or [(ConnectionFaults(late=late), ())]
    for name in args.names or cases:
        for trouble, restarts in troubles:
            result = run_shadow_case(name, *cases[name], trouble=trouble, restarts_at=restarts)
            agreed += sum(result.counts.agreements.values())
            diverged += bool(result.findings)
            reordered += result.reordered
            unseen += result.counts.unseen_count
            for finding in result.findings:
                where = f"{name}, seed {trouble.seed}, at {format_time(finding.at)}"
                sys.stdout.write(f"{where}: {finding.divergence_type.value} {finding.workload}: {finding.message}\n")
    count = len(args.names or cases) * len(troubles)
    sys.stdout.write(
        f"{count} scenarios: {agreed} decisions agree, {reordered} differ only in order, {unseen} not observed; "
        f"{diverged} scenarios with divergences\n"
    )
    return 1 if diverged else 0


if __name__ == "__main__":
    sys.exit(main())
