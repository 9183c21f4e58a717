"""Runs the commands of a document in a fresh copy of the repository, and compares their outputs with the document's.

    PYTHONPATH=src:tests python -m e2e_docs.page_run [--update] PAGE...

`--update` writes outputs that differ into the page, except for expected outputs with an ellipsis.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from e2e_docs.blocks import ROOT, Block, blocks, is_printed

#: The maximum duration of the commands of a page, in seconds.
PAGE_SECONDS: Final = 300
#: The time between SIGTERM and SIGKILL for the remaining processes of a page, in seconds.
_END_SECONDS: Final = 15
#: The environment variable that marks the processes of a page.
_MARK: Final = "BATCHYARD_PAGE"
_LEFT_OUT: Final = ("tests", ".*", "__pycache__", "*_cache", "build", "dist")
_PASSED_ON: Final = ("PATH", "KUBECACHEDIR", "TMPDIR", "SYSTEMROOT")


class BlockResult(NamedTuple):
    """The output of the commands of a block, and their exit code; None if they did not end."""

    block: Block
    output: str
    exit_code: int | None


class OutputDifference(NamedTuple):
    """An output of a document that differs from the printed one."""

    block: Block
    printed: str


def run_page(path: Path, folder: Path) -> list[BlockResult]:
    """Run the commands of a document in a copy of the repository below an empty folder, in one shell.

    Stops after a block that fails. Remaining processes are terminated.
    """
    copy, results = folder / "batchyard", folder / "results"
    _copy_repository(copy)
    results.mkdir()
    marked = [block for block in blocks(path) if block.runs]
    (folder / "page.sh").write_text("".join(_script(blocks(path), results)), "utf-8")
    try:
        _run_shell(folder, copy)
    finally:
        _end_processes(folder)
    return list(_results(marked, results))


def faults(path: Path, results: Sequence[BlockResult]) -> Iterator[str]:
    """Yield the faults of a page: failed commands, and outputs that differ from the document."""
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    for result in results:
        if result.exit_code != result.block.exit_code:
            code = "did not finish" if result.exit_code is None else f"exit code {result.exit_code}"
            expected = result.block.exit_code
            yield f"{place}:{result.block.line}: {code}, expected {expected}; printed:\n{result.output}"
    for difference in differences(path, results):
        yield f"{place}:{difference.block.line}: the document shows another output; printed:\n{difference.printed}"


def differences(path: Path, results: Sequence[BlockResult]) -> Iterator[OutputDifference]:
    """Yield the outputs of a document that differ from the printed ones."""
    printed = {result.block.line: result.output for result in results}
    found = blocks(path)
    for before, block in pairwise(found):
        if block.kind == "text" and before.line in printed and not is_printed(block.text, printed[before.line]):
            yield OutputDifference(block, printed[before.line])


def _copy_repository(copy: Path) -> None:
    """Copy the files that users have, and create a virtual environment that runs the sources under test."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    environment = copy / ".venv" / "bin"
    environment.mkdir(parents=True)
    sources = f"PYTHONPATH={ROOT / 'src'}"
    for name, program in (("batchyard", "-m batchyard"), ("python", "")):
        script = environment / name
        script.write_text(f'#!/bin/sh\n{sources} exec {sys.executable} {program} "$@"\n', "utf-8")
        script.chmod(0o755)
    (environment / "activate").write_text(f"export PATH={environment}:$PATH\n", "utf-8")
    (environment.parent / ".made").touch()


def _script(found: Sequence[Block], results: Path) -> Iterator[str]:
    """Yield the parts of the shell script of a page: files are written, blocks of commands run in order."""
    yield ". .venv/bin/activate\n"
    for block in found:
        place = results / str(block.line)
        if "title" in block.attributes:
            place.write_text(block.text, "utf-8")
            yield f"mkdir -p \"$(dirname '{block.attributes['title']}')\"; cp {place} '{block.attributes['title']}'\n"
        elif block.runs:
            place.with_suffix(".sh").write_text(block.text, "utf-8")
            yield f"set {'+' if block.exit_code else '-'}e\n"
            yield f". {place}.sh > {place}.out 2>&1 < /dev/null\n"
            yield f"code=$?; set +e; echo $code > {place}.code; [ $code = {block.exit_code} ] || exit 1\n"


def _run_shell(folder: Path, copy: Path) -> None:
    """Run the script of a page for at most PAGE_SECONDS; the caller kills processes that still run."""
    home = folder / "home"
    home.mkdir()
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= {"HOME": str(home), "LC_ALL": "C.UTF-8", "TERM": "dumb", _MARK: str(folder)}
    shell = subprocess.Popen(["bash", str(folder / "page.sh")], cwd=copy, env=environment, stderr=subprocess.DEVNULL)
    try:
        shell.wait(PAGE_SECONDS)
    except subprocess.TimeoutExpired:
        shell.kill()
        shell.wait()


def _results(marked: Sequence[Block], results: Path) -> Iterator[BlockResult]:
    for block in marked:
        output, code = (results / f"{block.line}{suffix}" for suffix in (".out", ".code"))
        if not output.exists():
            return
        text = code.read_text("utf-8").strip() if code.exists() else ""
        yield BlockResult(block, output.read_text("utf-8", "replace"), int(text) if text else None)


def _end_processes(folder: Path) -> None:
    """Terminate the remaining processes of a page, and wait for their end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in page_processes(folder):
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                signal.pidfd_send_signal(process, number)
                select.select([process], [], [], _END_SECONDS)
            except ProcessLookupError:
                pass
            finally:
                os.close(process)


def page_processes(folder: Path) -> Iterator[int]:
    """Yield the ids of the processes of a page, which have the mark in their environment."""
    mark = f"{_MARK}={folder}\0".encode()
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in place.read_bytes() + b"\0":
                yield int(place.parent.name)
        except OSError:
            continue


def update(path: Path, found: Sequence[OutputDifference]) -> None:
    """Write printed outputs into a document; expected outputs with an ellipsis stay unchanged."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    for block, printed in reversed(found):
        if not any(line.strip() == "..." or "..." in line for line in block.text.splitlines()):
            stripped = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
            lines[block.line : block.line + block.text.count("\n")] = [stripped]
    path.write_text("".join(lines), "utf-8")


def main() -> int:
    """Run the named pages; return 1 if one has a fault."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    is_wrong = False
    for path in (Path(argument).resolve() for argument in arguments):
        with TemporaryDirectory() as folder:
            results = run_page(path, Path(folder))
        for fault in faults(path, results):
            is_wrong = True
            sys.stdout.write(f"{fault}\n")
        if "--update" in sys.argv[1:]:
            update(path, list(differences(path, results)))
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
