"""The commands of every document run as they are printed, and print what the document shows.

The fence of commands that cannot run here states the reason. All commands are also checked against the options of the
command line.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e_docs.blocks import ROOT, Block, blocks, documents, is_printed
from e2e_docs.command_lines import commands, fault
from e2e_docs.page_run import faults, page_processes, run_page

#: The programs that pages with these words need.
PROGRAMS = {"kubectl ": "kubectl", "--cluster local": "bwrap", "batchyard monitoring": "prometheus"}
SHELL = ("bash", "sh", "console")
PAGES = [path for path in documents() if any(block.runs for block in blocks(path))]
WITH_COMMANDS = [path for path in documents() if any(block.kind in SHELL for block in blocks(path))]


def name(path: Path) -> str:
    """The path of a document in the repository."""
    return path.relative_to(ROOT).as_posix()


def script(block: Block) -> str:
    """The commands of a block; those of a recorded console have a prompt, and continue after a backslash."""
    if block.kind != "console":
        return block.text
    return "".join(re.findall(r"^\$ ((?:.*\\\n)*.*\n)", block.text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_of_page_run_and_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    text = "".join(block.text for block in blocks(path) if block.runs)
    for words, program in PROGRAMS.items():
        if words in text and shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    assert "\n".join(faults(path, run_page(path, tmp_path))) == ""


@pytest.mark.parametrize("path", WITH_COMMANDS, ids=name)
def test_commands_of_page_are_valid(path: Path) -> None:
    shells = [block for block in blocks(path) if block.kind in SHELL]
    words = [(block.line, arguments) for block in shells for arguments in commands(script(block))]
    result = [
        f"{name(path)}:{line}: {' '.join(words)}: {cause}" for line, words in words if (cause := fault(words[1:]))
    ]
    assert "\n".join(result) == ""
    assert [line for line, (program, *_) in words if program.startswith(".venv")] == [], "activate .venv once instead"
    for block in shells:
        done = subprocess.run(["bash", "-n"], input=script(block), text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{name(path)}:{block.line}"


def test_commands_that_do_not_run_say_why() -> None:
    marked = [(name(path), block) for path in documents() for block in blocks(path) if "no-run" in block.attributes]
    assert [(path, block.line) for path, block in marked if len(block.attributes["no-run"].split()) < 2] == []


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("batchyard simulate examples --until 5m | head -3", ""),
        ("KUBECONFIG=a .venv/bin/batchyard submit --queue q . -- python train.py --steps 3 &", ""),
        ("batchyard operator --controllers admission 2> operator.log &", ""),
        ("batchyard platform plan --help", ""),
        ("batchyard nothing", "there is no command nothing"),
        ("batchyard simulate a.yaml --zzz", "No such option: --zzz"),
        ("batchyard simulate a.yaml --output xml", "xml is none of table, wide, json, yaml"),
        ("batchyard why", "KIND/NAME is missing"),
        ("batchyard down now", "unexpected now"),
    ],
)
def test_a_command_is_checked_against_the_options(line: str, cause: str) -> None:
    assert [fault(arguments[1:]) for arguments in commands(line)] == [cause]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a  \nb\n", True),
        ("b\n", "a\nb\nc\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("job-...-1 runs\n", "job-x7-1 runs\n", True),
        ("a\nc\n", "a\nb\nc\n", False),
        ("a\n", "ab\n", False),
        ("b\n", "ab\n", False),
    ],
)
def test_an_output_is_compared_line_by_line(expected: str, printed: str, same: bool) -> None:
    assert is_printed(expected, printed) is same


PAGE = """
```yaml title="made/a.yaml"
a: 1
```
```bash
export PLACE=made/a.yaml
sleep 300 &
echo $!
```
```bash exit=3
cat "$PLACE"
(exit 3)
```
```text
a: 2
```
```bash no-run="needs a cluster"
exit 7
```
```bash
false
echo unreachable
```
```bash
touch after
```
"""


def test_a_page_runs_in_one_shell_until_its_first_failure(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    background, *results = run_page(page, tmp_path / "run")
    assert [(result.output, result.exit_code) for result in results] == [("a: 1\n", 3), ("", None)]
    assert not (tmp_path / "run" / "batchyard" / "after").exists()
    assert int(background.output) > 1
    assert list(page_processes(tmp_path / "run")) == []
    assert list(faults(page, [background, *results])) == [
        "page.md:20: did not finish, expected 0; printed:\n",
        "page.md:14: the document shows another output; printed:\na: 1\n",
    ]
