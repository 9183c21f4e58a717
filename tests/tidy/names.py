"""Rules for names: one term for each concept, no empty words, and tests named by the tested fact."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath

from tidy.source import FunctionNode, SourceFile, Violation

EMPTY_WORDS = frozenset({"common", "helper", "helpers", "misc", "util", "utils"})


def empty_names(file: SourceFile) -> Iterator[Violation]:
    """Yield files, folders and classes whose name is an empty word, such as `utils`."""
    instead = "name it by what it is or does"
    for word in _words_of_path(file.path) & EMPTY_WORDS:
        yield Violation(file.path, 1, "empty-name", file.path, f"the path says {word!r}", instead)
    for node in file.classes():
        for word in sorted(set(snake(node.name).split("_")) & EMPTY_WORDS):
            what = f"class {node.name} says {word!r}"
            yield Violation(file.path, node.lineno, "empty-name", node.name, what, instead)


def synonyms(file: SourceFile, words: Mapping[str, str]) -> Iterator[Violation]:
    """Yield identifiers that contain a synonym of a defined term."""
    pattern = re.compile(rf"(?:^|_)({'|'.join(words)})(?=_|s?$)")
    for line, identifier in _identifiers(file):
        for wrong in pattern.findall(snake(identifier)):
            yield Violation(file.path, line, "synonym", identifier, f"{identifier} says {wrong}", f"say {words[wrong]}")


@cache
def snake(identifier: str) -> str:
    """Return an identifier in snake case: ClusterQueue and clusterQueue become cluster_queue."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", identifier)
    return parted.lower().strip("_")


def _words_of_path(path: str) -> set[str]:
    pure = PurePosixPath(path).with_suffix("")
    return {word for part in pure.parts for word in part.lower().split("_")}


def _identifiers(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield each name that the file defines or reads, once per location."""
    for node in file.nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def unnamed_tests(file: SourceFile) -> Iterator[Violation]:
    """Yield tests whose name is a number or empty; the name must state the tested fact."""
    for node in file.functions():
        if _is_test(file, node) and len(snake(node.name).split("_")) < 3:
            what = f"test {node.name} does not name a fact"
            yield Violation(
                file.path, node.lineno, "test-name", node.name, what, "say what holds: test_reclaim_takes_..."
            )


def _is_test(file: SourceFile, node: FunctionNode) -> bool:
    return file.path.startswith("tests/") and node.name.startswith("test")
