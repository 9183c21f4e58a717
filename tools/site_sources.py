"""Checks the links of all documents, and writes the sources of the documentation site.

    python tools/site_sources.py [FOLDER]

The documents are the Markdown files below docs/ and elsewhere in the repository, such as ARCHITECTURE.md and the
READMEs of the examples. Each relative link must lead to a file, or to the README.md of a folder, and each anchor to a
heading. With FOLDER, the documents are written there for MkDocs: docs/ becomes the root, other documents keep their
path, and linked files are copied. Broken links are printed with place and remedy; the exit code is then 1.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
#: The documents outside of docs/ that are pages of the site. The README is checked; docs/index.md replaces it there.
_PAGES: Final = ("*.md", "examples/**/*.md", "benchmarks/**/*.md", "deploy/**/*.md")
_README: Final = PurePosixPath("README.md")
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"(?<=\]\()([^()\s]+)(?=(?:\s+\"[^\"]*\")?\))")
_ABSOLUTE: Final = re.compile(r"[a-z][a-z0-9+.-]*:")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_EXPLICIT: Final = re.compile(r"<a id=\"([^\"]+)\"|\{#([\w-]+)\}")
#: The attributes of a fence that are for the tests of the documents, and that a reader need not see.
_FENCE_ATTRIBUTE: Final = re.compile(r"(?<=\S)\s+(?:no-run=\"[^\"]*\"|exit=\d+)")


class DocumentLine(NamedTuple):
    """A line of a document, and whether it is in a fenced block, or the fence itself."""

    text: str
    is_code: bool


class BrokenLink(NamedTuple):
    """A broken link: its document, line, target, cause and remedy."""

    path: PurePosixPath
    line: int
    target: str
    cause: str

    def __str__(self) -> str:
        """Return `path:line: target: cause`."""
        return f"{self.path}:{self.line}: {self.target}: {self.cause}"


def document_paths() -> list[PurePosixPath]:
    """Return the paths of all documents, relative to the root of the repository."""
    found = {path for pattern in ("docs/**/*.md", *_PAGES) for path in ROOT.glob(pattern)}
    return sorted(PurePosixPath(path.relative_to(ROOT).as_posix()) for path in found)


@cache
def document_lines(path: PurePosixPath) -> tuple[DocumentLine, ...]:
    """Return the lines of a document."""
    lines, is_code = [], False
    for text in (ROOT / path).read_text("utf-8").splitlines():
        is_fence = _FENCE.match(text) is not None
        lines.append(DocumentLine(text, is_code or is_fence))
        is_code ^= is_fence
    return tuple(lines)


@cache
def anchors(path: PurePosixPath) -> frozenset[str]:
    """Return the anchors of a document: those that GitHub and the site derive from headings, and explicit ones."""
    found: list[str] = []
    for line in document_lines(path):
        if line.is_code:
            continue
        found += [first or second for first, second in _EXPLICIT.findall(line.text)]
        if heading := _HEADING.match(line.text):
            slug = _slug(heading[1])
            found.append(slug if slug not in found else f"{slug}_{found.count(slug)}")
    return frozenset(found)


def _slug(heading: str) -> str:
    """Return the anchor of a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", _EXPLICIT.sub("", heading))
    return re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-")


def links(path: PurePosixPath) -> Iterator[tuple[int, str]]:
    """Yield the relative links of a document with their line numbers, from 1."""
    for number, line in enumerate(document_lines(path), 1):
        if not line.is_code:
            targets = _LINK.findall(_CODE.sub("``", line.text))
            yield from ((number, target) for target in targets if not _ABSOLUTE.match(target))


def resolve(path: PurePosixPath, target: str) -> PurePosixPath:
    """Return the file that a link of a document leads to, relative to the root of the repository."""
    place = target.partition("#")[0]
    linked = PurePosixPath(os.path.normpath(path.parent / place)) if place else path
    return linked / _README if (ROOT / linked).is_dir() else linked


def broken_links() -> Iterator[BrokenLink]:
    """Yield the broken links of all documents."""
    pages = frozenset(document_paths())
    for path in sorted(pages):
        for number, target in links(path):
            linked, anchor = resolve(path, target), target.partition("#")[2]
            if target.startswith("/") or linked.parts[0] == "..":
                yield BrokenLink(path, number, target, "leads out of the repository; link to a file in it")
            elif not (ROOT / linked).is_file():
                yield BrokenLink(path, number, target, f"there is no {linked}; correct the path")
            elif anchor and linked in pages and anchor not in anchors(linked):
                known = ", ".join(sorted(anchors(linked)))
                yield BrokenLink(path, number, target, f"{linked} has no such heading; it has: {known}")


def site_path(path: PurePosixPath) -> PurePosixPath:
    """Return the path that a file of the repository has in the sources of the site."""
    if path == _README:
        return PurePosixPath("index.md")
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def write_site(folder: Path) -> None:
    """Empty a folder, and write the sources of the site into it.

    Raises OSError if the folder cannot be written.
    """
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.md", "requirements.*"))
    copied: set[PurePosixPath] = set()
    for path in document_paths():
        if path == _README:
            continue
        place = folder / site_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        moved = {target: _site_link(path, target) for _, target in links(path)}
        place.write_text("\n".join(_site_lines(path, moved)) + "\n", "utf-8")
        copied |= {resolve(path, target) for target in moved}
    for path in sorted(copied - {_README}):
        place = folder / site_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copyfile(ROOT / path, place)


def _site_link(path: PurePosixPath, target: str) -> str:
    """Return a link of a document as the site needs it."""
    linked, anchor = resolve(path, target), target.partition("#")[2]
    place = os.path.relpath(site_path(linked), site_path(path).parent)
    return f"{place}#{anchor}" if anchor else place


def _site_lines(path: PurePosixPath, moved: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a document, with links rewritten for the site."""
    for line in document_lines(path):
        if line.is_code:
            yield _FENCE_ATTRIBUTE.sub("", line.text) if _FENCE.match(line.text) else line.text
        else:
            yield _LINK.sub(lambda match: moved.get(match[0], match[0]), line.text)


def main() -> int:
    """Check the documents, and write the site if a folder is given; return the exit code."""
    broken = list(broken_links())
    sys.stderr.writelines(f"{link}\n" for link in broken)
    if broken:
        return 1
    if sys.argv[1:]:
        write_site(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
