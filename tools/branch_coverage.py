"""Checks that tools/missed_branches.toml lists each branch of the decision packages that no test takes.

    python tools/branch_coverage.py REPORT [--write]

REPORT is coverage's JSON report; `make coverage` creates it. Exits with 1 if the list lacks a branch or its reason.
`--write` updates the list and keeps the reasons. An entry identifies its branch by the texts of two lines, because line
numbers change with each edit.
"""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MISSED: Final = ROOT / "tools" / "missed_branches.toml"
_HEADER: Final = """\
# The branches of the decision packages that `make coverage` does not reach, each with the reason. `branch` has the text
# of the branching line, and of the line that no test reaches from it.
"""


class Branch(NamedTuple):
    """A branch: its file below src/batchyard, its function, and the texts of its two lines."""

    file: str
    function: str
    branch: str


def missed_branches(report: Mapping[str, Any]) -> Iterator[Branch]:
    """Yield the branches that the report lists as missed, in the order of the files and lines."""
    for path, file in sorted(report["files"].items()):
        text = (ROOT / path).read_text("utf-8")
        lines, functions = text.split("\n"), _functions_by_line(text)
        for start, end in sorted(file["missing_branches"]):
            target = lines[end - 1].strip() if end > 0 else "the end"
            name = path.removeprefix("src/batchyard/")
            yield Branch(name, functions.get(start, "the module"), f"{lines[start - 1].strip()} -> {target}")


def _functions_by_line(text: str) -> dict[int, str]:
    """Return the qualified name of the innermost function of each line."""
    functions: dict[int, str] = {}

    def visit(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{scope}.{child.name}".removeprefix(".")
                assert child.end_lineno is not None
                if not isinstance(child, ast.ClassDef):
                    functions.update(dict.fromkeys(range(child.lineno, child.end_lineno + 1), name))
            visit(child, name)

    visit(ast.parse(text), "")
    return functions


def read_reasons(path: Path) -> dict[Branch, str]:
    """Return the listed branches with their reasons; empty if the file does not exist."""
    if not path.exists():
        return {}
    entries = tomllib.loads(path.read_text("utf-8")).get("missed", ())
    return {Branch(entry["file"], entry["function"], entry["branch"]): entry["reason"] for entry in entries}


def write_reasons(path: Path, reasons: Mapping[Branch, str]) -> None:
    """Write the list of missed branches."""
    entries = (
        f"\n[[missed]]\nfile = {json.dumps(branch.file)}\nfunction = {json.dumps(branch.function)}\n"
        f"branch = {json.dumps(branch.branch)}\nreason = {json.dumps(reason)}\n"
        for branch, reason in reasons.items()
    )
    path.write_text(_HEADER + "".join(entries), "utf-8")


def main() -> None:
    """Compare the report with the list; print the counts, and each branch without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    report = json.loads(options.report.read_text("utf-8"))
    known, missed = read_reasons(MISSED), list(dict.fromkeys(missed_branches(report)))
    if options.write:
        write_reasons(MISSED, {branch: known.get(branch, "") for branch in missed})
    totals = report["totals"]
    print(f"{totals['covered_branches']} of {totals['num_branches']} branches taken; {len(missed)} missed")
    unlisted = [branch for branch in missed if not known.get(branch)]
    for branch in unlisted:
        print(
            f"missing in {MISSED.name}, or without a reason: {branch.file}: {branch.function}: {branch.branch}",
            file=sys.stderr,
        )
    sys.exit(1 if unlisted else 0)


if __name__ == "__main__":
    main()
