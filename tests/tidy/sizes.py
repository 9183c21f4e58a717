"""Limits for the sizes of functions, classes and modules, for parameters, and for nesting."""

import ast
from collections.abc import Iterator

from tidy.source import FunctionNode, SourceFile, Violation

FUNCTION_LINES = 60
TEST_LINES = 25
CLASS_LINES = 275
MODULE_LINES = 600
PARAMETERS = 6
#: The modules with functions whose parameters are the options of a command.
COMMANDS = (
    "src/batchyard/cli/commands/",
    "src/batchyard/cli/daily/",
    "src/batchyard/cli/submit/command.py",
    "src/batchyard/cli/platform/command.py",
)
NESTING = 4

_COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def long_functions(file: SourceFile) -> Iterator[Violation]:
    """Functions with too many lines; the limit for tests is lower."""
    for node in file.functions():
        is_test = file.path.startswith("tests/") and node.name.startswith("test_")
        limit, lines = TEST_LINES if is_test else FUNCTION_LINES, _lines(node)
        if lines > limit:
            what = f"function {node.name} has {lines} lines, more than {limit}"
            instead = "test one behavior per test" if is_test else "leave the control flow here and move the leaves out"
            yield Violation(file.path, node.lineno, "function-length", node.name, what, instead)


def long_classes(file: SourceFile) -> Iterator[Violation]:
    """Classes with too many lines."""
    for node in file.classes():
        if _lines(node) > CLASS_LINES:
            what = f"class {node.name} has {_lines(node)} lines, more than {CLASS_LINES}"
            yield Violation(
                file.path, node.lineno, "class-length", node.name, what, "split it by what changes together"
            )


def long_modules(file: SourceFile) -> Iterator[Violation]:
    """Modules with too many lines."""
    lines = len(file.text.splitlines())
    if lines > MODULE_LINES:
        what = f"module has {lines} lines, more than {MODULE_LINES}"
        yield Violation(file.path, MODULE_LINES + 1, "module-length", file.path, what, "split it by noun")


def many_parameters(file: SourceFile) -> Iterator[Violation]:
    """Functions with too many parameters; keyword-only parameters count, self and cls do not.

    The modules in COMMANDS are exempt, because the parameters of a command are its options.
    """
    if file.path.startswith(COMMANDS):
        return
    methods = {id(member) for node in file.classes() for member in node.body if not _is_static(member)}
    for node in file.functions():
        arguments = node.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        count -= id(node) in methods
        if count > PARAMETERS:
            what = f"function {node.name} has {count} parameters, more than {PARAMETERS}"
            yield Violation(file.path, node.lineno, "parameters", node.name, what, "name the value that is missing")


def deep_nesting(file: SourceFile) -> Iterator[Violation]:
    """Functions whose compound statements nest too deeply."""
    for node in file.functions():
        depth = max((_depth(statement) for statement in node.body), default=0)
        if depth > NESTING:
            what = f"function {node.name} nests {depth} deep, more than {NESTING}"
            yield Violation(file.path, node.lineno, "nesting", node.name, what, "return early, or move the inside out")


def _is_static(member: ast.stmt) -> bool:
    return isinstance(member, FunctionNode) and any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in member.decorator_list
    )


def _lines(node: FunctionNode | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _depth(node: ast.AST) -> int:
    """The maximum depth of compound statements in a node; an `elif` has the depth of its `if`."""
    if isinstance(node, _SCOPES):
        return 0
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        inside = max((_depth(child) for child in node.body), default=0)
        return max(1 + inside, _depth(node.orelse[0]))
    inside = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return inside + isinstance(node, _COMPOUND)
