"""Fuzzes the API of a platform: `python tools/fuzz_api.py --seed 1 --rounds 100`.

Each round sends 500 requests that depend on the seed and the round, and 20 requests with invalid bytes. Every tenth
round also has invalid HTTP messages and clients that stall. Checks:

- No response is a 5xx, except 503 under overload and 504 for future revisions.
- The log has no internal errors.
- Other clients get responses throughout.
- The memory does not grow.
- The journal recovers after a kill at the end.

Exits with 1 if a check fails.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz.platform import FuzzedPlatform, StalledConnections


def main() -> int:
    """Run all rounds and print their results; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--schemas", action="store_true", help="also test all OpenAPI documents with schemathesis")
    args = parser.parse_args()
    with TemporaryDirectory() as folder, FuzzedPlatform(Path(folder)) as fuzzed:
        for number in range(args.rounds):
            fuzzed.send(500, args.seed, number)
            fuzzed.send_garbled(20, args.seed, number)
            if number % 10 == 0:
                fuzzed.send_shapes()
                with StalledConnections(fuzzed.url, 20):
                    fuzzed.send(50, args.seed, number, "with stalled clients")
            sys.stdout.write(f"round {number + 1}: {sum(fuzzed.codes.values())} responses, {fuzzed.resident()} MB, ")
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
