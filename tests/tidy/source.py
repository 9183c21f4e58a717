"""The files that the rules read, and the violations that they report."""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_ENVIRONMENTS = frozenset({".venv", ".compiled", ".release", ".torch", ".helm", ".terraform-library", ".docs", ".site"})
_NOT_OURS = _ENVIRONMENTS | {".git", "__pycache__", "build", "dist", ".hypothesis"}
_NOT_OURS_SUFFIXES = ("_cache", ".egg-info")
#: Written by `make coverage`.
_BINARY_FILES = frozenset({".coverage"})
_TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".ini", ".json", ".lock", ".md", ".py", ".sh", ".tf", ".toml", ".txt", ".yaml", ".yml"}
)


class Violation(NamedTuple):
    """A violation of a rule: the place, the rule, the function, class, module or word, and the remedy."""

    path: str
    line: int
    rule: str
    subject: str
    what: str
    instead: str

    def __str__(self) -> str:
        """`path:line: what; what instead`."""
        return f"{self.path}:{self.line}: {self.what}; {self.instead}"


@dataclass(frozen=True)
class SourceFile:
    """A text file; its path is relative to the root of the repository."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of a Python file."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, outer ones first."""
        return tuple(ast.walk(self.tree))

    def lies_in(self, place: str) -> bool:
        """Whether this is the file `place`, or lies in the folder `place/`."""
        return self.path.startswith(place) if place.endswith("/") else self.path == place

    def functions(self) -> Iterator[FunctionNode]:
        """Every function and method, nested ones too."""
        return (node for node in self.nodes if isinstance(node, FunctionNode))

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class, nested ones too."""
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


def files_below(root: Path) -> list[SourceFile]:
    """Every text file of the repository that could be committed, sorted by path."""
    paths: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_OURS and not name.endswith(_NOT_OURS_SUFFIXES)]
        # In a linked work tree of git, `.git` is a file.
        texts = (
            name for name in names if Path(name).suffix in _TEXT_SUFFIXES and name not in _NOT_OURS | _BINARY_FILES
        )
        paths += [Path(folder, name) for name in texts]
    return [SourceFile(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in sorted(paths)]
