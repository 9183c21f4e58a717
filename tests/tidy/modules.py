"""Rules for modules: docstrings, private imports, unused modules and compiled classes."""

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence

from tidy.source import SourceFile, Violation

_SRC = "src/"


def undocumented_modules(file: SourceFile) -> Iterator[Violation]:
    """Yield modules without a docstring."""
    if not ast.get_docstring(file.tree):
        instead = "say in a line what it is and why it is there"
        yield Violation(file.path, 1, "module-docstring", file.path, "module has no docstring", instead)


def private_imports(file: SourceFile) -> Iterator[Violation]:
    """Yield imports of private names of other modules."""
    for node in file.nodes:
        if isinstance(node, ast.ImportFrom):
            for name in (name.name for name in node.names if name.name.startswith("_")):
                what = f"imports {name}, private to {node.module}"
                yield Violation(
                    file.path, node.lineno, "private-import", name, what, "make it public there, or do without"
                )


def dead_modules(files: Sequence[SourceFile], entry_points: Sequence[str]) -> Iterator[Violation]:
    """Yield modules that no entry point imports, even indirectly. A package is used if one of its modules is."""
    modules = {_module_name(file.path): file for file in files if file.path.startswith(_SRC)}
    alive = _reached(modules, entry_points)
    for name, file in sorted(modules.items()):
        if name not in alive and not file.path.endswith("__init__.py"):
            instead = "use it from there, or remove it"
            yield Violation(file.path, 1, "dead-module", name, f"no entry point imports {name}", instead)


def _module_name(path: str) -> str:
    return path.removeprefix(_SRC).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _reached(modules: Mapping[str, SourceFile], entry_points: Sequence[str]) -> set[str]:
    alive: set[str] = set()
    waiting = [name for name in entry_points if name in modules]
    while waiting:
        name = waiting.pop()
        if name not in alive:
            alive.add(name)
            waiting += [result for result in _imports(modules[name]) if result in modules]
    return alive


def _imports(file: SourceFile) -> Iterator[str]:
    """Return the imported modules of a file, and their packages."""
    for node in file.nodes:
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        for name in named:
            parts = name.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


#: Base classes whose subclasses mypyc does not compile.
_NEVER_COMPILED = frozenset({"NamedTuple", "Enum", "StrEnum", "IntEnum", "Protocol", "TypedDict"})


def interpreted_heirs(files: Sequence[SourceFile], compiled: Sequence[str]) -> Iterator[Violation]:
    """Yield interpreted classes that inherit from a class of a compiled module, which fails only at run time."""
    modules = {_module_name(file.path): file for file in files}
    is_compiled = {name: any(map(file.lies_in, compiled)) for name, file in modules.items()}
    for file in (file for name, file in modules.items() if not is_compiled[name]):
        homes = {
            name.asname or name.name: (node.module, name.name)
            for node in file.nodes
            if isinstance(node, ast.ImportFrom) and node.module and is_compiled.get(node.module)
            for name in node.names
        }
        for heir in file.classes():
            for base in (base.id for base in heir.bases if isinstance(base, ast.Name) and base.id in homes):
                module, name = homes[base]
                if _is_compiled_class(modules[module], name):
                    what = f"{heir.name} inherits from {name}, which is compiled where {heir.name} is not"
                    yield Violation(file.path, heir.lineno, "compiled-base", heir.name, what, "hold one instead")


def _is_compiled_class(file: SourceFile, name: str) -> bool:
    result = [node for node in file.classes() if node.name == name]
    bases = {base.id for node in result for base in node.bases if isinstance(base, ast.Name)}
    return bool(result) and not bases & _NEVER_COMPILED


_CONTAINERS = frozenset({"dict", "list", "set", "deque", "OrderedDict", "Counter", "defaultdict"})
#: The only built-in exception that a compiled class can inherit from.
_EXCEPTIONS = frozenset(
    name
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, Exception) and found is not Exception
)


def builtin_heirs(files: Sequence[SourceFile], compiled: Sequence[str]) -> Iterator[Violation]:
    """Yield compiled classes that inherit from a built-in class: they do not compile, or crash at run time."""
    for file in (file for file in files if any(map(file.lies_in, compiled))):
        for heir in file.classes():
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in heir.bases)
            for name in (base.id for base in bases if isinstance(base, ast.Name)):
                what = f"{heir.name} inherits from {name} in a module that is compiled"
                if name in _CONTAINERS:
                    yield Violation(file.path, heir.lineno, "builtin-base", heir.name, what, "hold one instead")
                elif name in _EXCEPTIONS:
                    instead = "inherit from Exception, or move it to a module that is not"
                    yield Violation(file.path, heir.lineno, "builtin-base", heir.name, what, instead)


def uncompilable(files: Sequence[SourceFile], compiled: Sequence[str]) -> Iterator[Violation]:
    """Yield statements of compiled modules that mypyc cannot compile."""
    for file in (file for file in files if any(map(file.lies_in, compiled))):
        for statement in (node for node in file.nodes if isinstance(node, ast.Try) and node.finalbody):
            what = "continue inside try with finally in a module that is compiled"
            for line in _continues(statement):
                yield Violation(file.path, line, "uncompilable", "continue", what, "move the loop's body out")
        comparisons = (node for node in file.nodes if isinstance(node, ast.Compare))
        for node in (node for node in comparisons if isinstance(node.ops[-1], ast.In | ast.NotIn)):
            operand = node.comparators[-1]
            if isinstance(operand, ast.Tuple) and any(isinstance(each, ast.Starred) for each in operand.elts):
                what = "search in a tuple that has a starred item in a module that is compiled"
                yield Violation(file.path, operand.lineno, "uncompilable", "in", what, "compare with each part")


def _continues(statement: ast.Try) -> Iterator[int]:
    """Yield the lines of `continue` statements that leave a try statement."""
    nodes: list[ast.AST] = [*statement.body, *statement.handlers, *statement.orelse]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Continue):
            yield node.lineno
        elif not isinstance(node, (ast.For, ast.While, *_FUNCTIONS)):
            nodes += ast.iter_child_nodes(node)


def decorated_within(files: Sequence[SourceFile], compiled: Sequence[str]) -> Iterator[Violation]:
    """Yield decorated nested functions of compiled modules: their names are unbound at run time."""
    for file in (file for file in files if any(map(file.lies_in, compiled))):
        for outer in (node for node in file.nodes if isinstance(node, _FUNCTIONS)):
            for node in (node for part in outer.body for node in ast.walk(part)):
                if isinstance(node, _FUNCTIONS) and node.decorator_list:
                    what = f"{node.name} is decorated within {outer.name}, in a module that is compiled"
                    instead = f"write {node.name} = decorator(function)"
                    yield Violation(file.path, node.lineno, "decorated-within", node.name, what, instead)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
