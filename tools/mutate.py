"""Mutation testing: checks that a small fault in the decision code makes a test fail.

    python tools/mutate.py                  apply each mutation of mutations.toml in turn, and run the tests
    python tools/mutate.py --only fair      only mutations whose name contains the text
    python tools/mutate.py --suites laws    only these suites: unit, quota, laws, oracle, clusters (default: all)
    python tools/mutate.py --each           run every suite, instead of stopping at the first failing one
    python tools/mutate.py --check          only check that each mutation matches the sources exactly once

Mutates a copy of src; the tests run against the copy. Prints a table with the failing test of each mutation, or
SURVIVED. If a mutation survives, a test is missing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 300

#: One process, a stop at the first failure, little output; hypothesis does not shrink failing examples.
PYTEST = ["pytest", "-n0", "-x", "-q", "--no-header", "--tb=no", "-pno:cacheprovider", "--hypothesis-profile=unshrunk"]

SUITES = {
    "unit": tuple(f"tests/unit/{name}" for name in ("autoscaler", "cloud", "jobs", "placement", "scheduling")),
    "quota": ("tests/properties/test_quota.py",),
    "laws": ("tests/properties/test_preemption_laws.py", "tests/properties/test_laws.py"),
    "oracle": ("tests/differential",),
    "clusters": ("tests/sim_worlds", "tests/properties/test_cluster_laws.py"),
}


class Mutation(NamedTuple):
    """A small fault: a text of a file below src/batchyard, and its replacement."""

    name: str
    file: str
    find: str
    replace: str

    def count_matches(self, src: Path) -> int:
        """Return the number of occurrences of the text in its file; exactly one is valid."""
        return (src / "batchyard" / self.file).read_text("utf-8").count(self.find)

    def apply(self, src: Path) -> None:
        """Replace the text in its file."""
        path = src / "batchyard" / self.file
        path.write_text(path.read_text("utf-8").replace(self.find, self.replace), "utf-8")


def read_mutations() -> list[Mutation]:
    """Return the mutations of mutations.toml."""
    rows = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text("utf-8"))["mutation"]
    return [Mutation(**row) for row in rows]


def find_failing_test(src: Path, suite: str) -> str:
    """Return the first test of a suite that fails against a source tree; '' if all pass."""
    environment = {**os.environ, "PYTHONPATH": str(src), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *PYTEST, *SUITES[suite]]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{suite}: timeout after {TIMEOUT_SECONDS} s"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+(?: [^-]\S*)*)", done.stdout, re.MULTILINE)
    return found[1] if found else f"{suite}: exit code {done.returncode}: {done.stdout[-200:]}{done.stderr[-200:]}"


def find_failing_tests(mutation: Mutation, suites: Sequence[str], *, each: bool) -> Iterator[str]:
    """Yield the first test that fails with a mutation; with `each`, the first failing test of each suite."""
    with tempfile.TemporaryDirectory() as folder:
        src = Path(folder) / "src"
        shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.apply(src)
        for suite in suites:
            test = find_failing_test(src, suite)
            if test:
                yield test
                if not each:
                    return


def find_invalid_mutations(mutations: Sequence[Mutation]) -> list[str]:
    """Return an error for each mutation whose text does not occur exactly once."""
    counts = {mutation.name: mutation.count_matches(ROOT / "src") for mutation in mutations}
    return [f"{name}: its text occurs {count} times; 1 is required" for name, count in counts.items() if count != 1]


def main() -> int:
    """Run the mutations; return 1 if one survives or is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument(
        "--each", action="store_true", help="run every suite, instead of stopping at the first failing one"
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    mutations = [mutation for mutation in read_mutations() if args.only in mutation.name]
    invalid = find_invalid_mutations(mutations)
    if invalid or args.check:
        print("\n".join(invalid) or f"{len(mutations)} mutations are valid")
        return 1 if invalid else 0
    suites = args.suites.split(",")
    failing = [test for suite in suites if (test := find_failing_test(ROOT / "src", suite))]
    if failing:
        print(f"these tests fail without a mutation; fix them first: {'; '.join(failing)}")
        return 1
    survivors = 0
    for mutation in mutations:
        tests = list(find_failing_tests(mutation, suites, each=args.each))
        survivors += not tests
        print(f"{mutation.name:64} {'; '.join(tests) or 'SURVIVED'}", flush=True)
    print(f"{len(mutations) - survivors} of {len(mutations)} mutations killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
