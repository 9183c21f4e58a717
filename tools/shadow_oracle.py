"""Follows what upstream decided in every recorded scenario, and tells where a shadow parts from it.

    python tools/shadow_oracle.py [NAME...] [--late KIND=SECONDS ...] [--trouble SEED ...]

`--late` lets the watch of a kind tell so much later than others, such as `--late clusterqueues=1.3`. `--trouble` makes
the wire a bad one, of another sort for each seed: each watch is late by a time of its own, up to eight seconds, repeats
itself, breaks off, at times so that it has to list all again, and the shadow itself is begun anew in the middle. Run it
with the project's environment; it ends with 1 if the shadow parted from upstream anywhere.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND
from differential.recorded_scenarios import packed_cases, shared_cases
from differential.shadow_runs import shadowed_case
from differential.unreliable_transport import Trouble, drawn_trouble


def main() -> int:
    """Follow the scenarios; tell of partings, and what all came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--late", action="append", default=[], metavar="KIND=SECONDS")
    parser.add_argument("--trouble", action="append", default=[], type=int, metavar="SEED")
    args = parser.parse_args()
    cases = {**packed_cases(), **shared_cases()}
    late = {kind: round(float(by) * SECOND) for kind, _, by in (each.partition("=") for each in args.late)}
    agreed = parted = reordered = unseen = 0
    troubles = [drawn_trouble(seed) for seed in args.trouble] or [(Trouble(late=late), ())]
    for name in args.names or cases:
        for trouble, restarts in troubles:
            reported = shadowed_case(name, *cases[name], trouble=trouble, restarts_at=restarts)
            agreed += sum(reported.counts.agreements.values())
            parted += bool(reported.findings)
            reordered += reported.reordered
            unseen += reported.counts.unseen_count
            for finding in reported.findings:
                where = f"{name}, {trouble.seed}, at {format_time(finding.at)}"
                sys.stdout.write(f"{where}: {finding.divergence_type.value} {finding.workload}: {finding.message}\n")
    count = len(args.names or cases) * len(troubles)
    sys.stdout.write(
        f"{count} scenarios: {agreed} decisions as foreseen, {reordered} times in another order alone, "
        f"{unseen} not seen; {parted} scenarios with partings\n"
    )
    return 1 if parted else 0


if __name__ == "__main__":
    sys.exit(main())
