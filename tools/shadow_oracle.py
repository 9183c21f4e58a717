"""Follows what upstream decided in every recorded scenario, and tells where a shadow parts from it.

    python tools/shadow_oracle.py [NAME...] [--late KIND=SECONDS ...]

`--late` lets the watch of a kind tell so much later than others, such as `--late clusterqueues=1.3`. Run it with the
project's environment; it ends with 1 if the shadow parted from upstream anywhere.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND
from oracle.recorded import packed_cases, shared_cases
from oracle.shadowed import shadowed_case


def main() -> int:
    """Follow the scenarios; tell of partings, and what all came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--late", action="append", default=[], metavar="KIND=SECONDS")
    args = parser.parse_args()
    cases = {**packed_cases(), **shared_cases()}
    late = {kind: round(float(by) * SECOND) for kind, _, by in (each.partition("=") for each in args.late)}
    agreed = parted = reordered = 0
    for name in args.names or cases:
        told = shadowed_case(name, *cases[name], delays=late)
        agreed += sum(told.counts.agreed.values())
        parted += bool(told.findings)
        reordered += told.reordered
        for finding in told.findings:
            where = f"{name} at {format_time(finding.at)}"
            sys.stdout.write(f"{where}: {finding.parting.value} {finding.workload}: {finding.message}\n")
    count = len(args.names or cases)
    sys.stdout.write(
        f"{count} scenarios: {agreed} decisions as foreseen, {reordered} times in another order alone; "
        f"{parted} scenarios with partings\n"
    )
    return 1 if parted else 0


if __name__ == "__main__":
    sys.exit(main())
