"""Fuzzes a platform for as long as it is told to: `python tools/fuzz_api.py --seed 1 --rounds 100`.

A round is five hundred requests from the seed and its number, bytes that are none, and clients that stall. No answer
may be a 5xx but 503 under overload and 504 for revisions that are yet to come, the log may tell of no defect, others
are served all the while, memory stays where it was, and after a kill at the end the journal recovers.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz.platform import Fuzzed, Stalled


def main() -> int:
    """Send, and tell each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--schemas", action="store_true", help="then let schemathesis go through all OpenAPI documents")
    args = parser.parse_args()
    with TemporaryDirectory() as folder, Fuzzed(Path(folder)) as fuzzed:
        for number in range(args.rounds):
            fuzzed.send(500, args.seed, number)
            fuzzed.send_garbled(20, args.seed, number)
            if number % 10 == 0:
                fuzzed.send_shapes()
                with Stalled(fuzzed.url, 20):
                    fuzzed.send(50, args.seed, number, "among those who stall")
            sys.stdout.write(f"round {number + 1}: {sum(fuzzed.codes.values())} answers, {fuzzed.resident()} MB, ")
            sys.stdout.write(f"{len(fuzzed.faults)} faults\n")
            sys.stdout.flush()
        for document in fuzzed.documents() if args.schemas else ():
            fuzzed.send_by_schema(document, 20, "coverage,fuzzing")
            sys.stdout.write(f"{document}: {fuzzed.resident()} MB, {len(fuzzed.faults)} faults\n")
            sys.stdout.flush()
        fuzzed.end()
    sys.stdout.write(f"{dict(sorted(fuzzed.codes.items()))}\n")
    for fault in fuzzed.faults:
        sys.stdout.write(f"{fault}\n")
    return 1 if fuzzed.faults else 0


if __name__ == "__main__":
    sys.exit(main())
