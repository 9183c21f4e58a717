"""Mutations: whether a small fault in what decides makes a test fail.

    python tools/mutate.py                  plant every fault of mutations.toml, one at a time, and run the tests
    python tools/mutate.py --only fair      only those whose name has the text in it
    python tools/mutate.py --suites laws    only these tests: unit, quota, laws, oracle, clusters (default: all)
    python tools/mutate.py --each           ask every suite, not only the first that kills
    python tools/mutate.py --check          only see that every fault still has its place

The tree itself is not touched: a copy of src is mutated, and the tests run against the copy. Prints a table: which
test killed the mutation, or SURVIVED. A survivor means that a test is missing.
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
SECONDS_MAX = 300

#: One process, stop at the first failure, say little; what fails need not be made smaller.
PYTEST = ["pytest", "-n0", "-x", "-q", "--no-header", "--tb=no", "-pno:cacheprovider", "--hypothesis-profile=unshrunk"]

SUITES = {
    "unit": ("tests/unit/core", "tests/unit/controllers", "tests/unit/cloud"),
    "quota": ("tests/properties/test_quota.py",),
    "laws": ("tests/properties/test_preemption_laws.py", "tests/properties/test_laws.py"),
    "oracle": ("tests/differential",),
    "clusters": ("tests/sim_worlds", "tests/properties/test_cluster_laws.py"),
}


class Mutation(NamedTuple):
    """A small fault: a text of a file, and what stands there instead."""

    name: str
    file: str
    find: str
    replace: str

    def places(self, src: Path) -> int:
        """How often the text is found; once is right."""
        return (src / "batchyard" / self.file).read_text("utf-8").count(self.find)

    def plant(self, src: Path) -> None:
        """Change the file."""
        path = src / "batchyard" / self.file
        path.write_text(path.read_text("utf-8").replace(self.find, self.replace), "utf-8")


def all_mutations() -> list[Mutation]:
    """Those of the table."""
    rows = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text("utf-8"))["mutation"]
    return [Mutation(**row) for row in rows]


def killer(src: Path, suite: str) -> str:
    """The first test of a suite that fails against a source tree; '' if none does."""
    environment = {**os.environ, "PYTHONPATH": str(src), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *PYTEST, *SUITES[suite]]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{suite}: no end within {SECONDS_MAX} s"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+(?: [^-]\S*)*)", done.stdout, re.MULTILINE)
    return found[1] if found else f"{suite}: exit {done.returncode}: {done.stdout[-200:]}{done.stderr[-200:]}"


def killers(mutation: Mutation, suites: Sequence[str], *, each: bool) -> Iterator[str]:
    """The tests that kill a mutation: the first one, or the first of each suite."""
    with tempfile.TemporaryDirectory() as folder:
        src = Path(folder) / "src"
        shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__"))
        mutation.plant(src)
        for suite in suites:
            found = killer(src, suite)
            if found:
                yield found
                if not each:
                    return


def misplaced(mutations: Sequence[Mutation]) -> list[str]:
    """Faults that no longer have exactly one place in the tree."""
    places = {mutation.name: mutation.places(ROOT / "src") for mutation in mutations}
    return [f"{name}: its text is found {count} times" for name, count in places.items() if count != 1]


def main() -> int:
    """Run; 1 if a mutation survives or has lost its place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--each", action="store_true", help="ask every suite, not only the first that kills")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    mutations = [mutation for mutation in all_mutations() if args.only in mutation.name]
    lost = misplaced(mutations)
    if lost or args.check:
        print("\n".join(lost) or f"{len(mutations)} mutations have their place")
        return 1 if lost else 0
    suites = args.suites.split(",")
    failing = [found for suite in suites if (found := killer(ROOT / "src", suite))]
    if failing:
        print(f"without any mutation these tests fail: {'; '.join(failing)}")
        return 1
    survivors = 0
    for mutation in mutations:
        killed_by = list(killers(mutation, suites, each=args.each))
        survivors += not killed_by
        print(f"{mutation.name:64} {'; '.join(killed_by) or 'SURVIVED'}", flush=True)
    print(f"{len(mutations) - survivors} of {len(mutations)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
