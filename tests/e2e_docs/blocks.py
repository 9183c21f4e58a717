"""The fenced blocks of a document: commands, their outputs, and files.

A block of kind `bash` runs, unless its fence has `no-run="REASON"`. With `exit=N` its last command must exit with N. A
block of kind `text` directly after a block of kind `bash` is the output of its commands, or an excerpt. A block with
`title="PATH"` is a file, which is written before the next commands run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_FENCE: Final = re.compile(r"^(\s*)```(.*)$")
_ELLIPSIS: Final = "..."


class Block(NamedTuple):
    """A fenced block: its kind, the attributes of its fence, its text, and the line of its fence, from 1."""

    kind: str
    attributes: Mapping[str, str]
    text: str
    line: int

    @property
    def runs(self) -> bool:
        """Whether the commands of the block are executed."""
        return self.kind == "bash" and "no-run" not in self.attributes

    @property
    def exit_code(self) -> int:
        """The expected exit code of the last command."""
        return int(self.attributes.get("exit", "0"))


def documents() -> list[Path]:
    """All documents of the repository except CHANGELOG.md."""
    patterns = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "deploy/**/*.md")
    result = {path for pattern in patterns for path in ROOT.glob(pattern) if path.name != "CHANGELOG.md"}
    return sorted(result)


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    result: list[Block] = []
    lines = iter(enumerate(path.read_text("utf-8").splitlines(), 1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            result.append(_block(fence, number, lines))
    return result


def _block(fence: re.Match[str], number: int, lines: Iterator[tuple[int, str]]) -> Block:
    """The block that begins with a fence; reads `lines` up to the end of the block."""
    kind, *words = shlex.split(fence[2]) or [""]
    text = []
    for _, line in lines:
        if _FENCE.match(line):
            break
        text.append(line.removeprefix(fence[1]) + "\n")
    return Block(kind, dict(word.split("=", 1) for word in words if "=" in word), "".join(text), number)


def is_printed(expected: str, printed: str) -> bool:
    """Whether an output has the expected lines, in sequence.

    The output may have other lines before and after them. `...` matches any text of a line; on its own line, any lines.
    """
    pattern = "".join(map(_line_pattern, expected.splitlines()))
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.search("^" + pattern, text, re.MULTILINE) is not None


def _line_pattern(line: str) -> str:
    if line.strip() == _ELLIPSIS:
        return r"(?:.*\n)*?"
    return ".*?".join(map(re.escape, line.rstrip().split(_ELLIPSIS))) + r"\n"
