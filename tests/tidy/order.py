"""Rule against dependence on the order of sets, which differs between runs."""

import ast
from collections.abc import Iterator

from tidy.source import FunctionNode, SourceFile, Violation

_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
#: Calls whose result does not depend on the order of their argument.
_ORDER_FREE = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"})
_IN_ORDER = frozenset({"enumerate", "iter", "list", "map", "filter", "tuple", "zip", "reversed"})


def set_iteration(file: SourceFile) -> Iterator[Violation]:
    """Yield loops over sets, and sequences created from sets, whose order has an effect."""
    free = {id(argument) for node in file.nodes for argument in _order_free_arguments(node)}
    attributes = _attributes_of_sets(file)
    for scope, nodes in _scopes(file):
        sets = _names_of_sets(scope, nodes) | attributes
        for node in nodes:
            if id(node) in free or isinstance(node, ast.SetComp):
                continue
            for seen in _ordered_reads(node):
                if _is_set(seen, sets):
                    what = f"the order of the set `{ast.unparse(seen)[:60]}` is seen"
                    instead = "sort it, or keep a dict in place of the set"
                    yield Violation(file.path, seen.lineno, "set-order", ast.unparse(seen), what, instead)


def _scopes(file: SourceFile) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Yield the module and each function with its nodes, without those of nested functions."""
    for scope in (file.tree, *file.functions()):
        own: list[ast.AST] = []
        waiting = list(ast.iter_child_nodes(scope))
        while waiting:
            node = waiting.pop()
            own.append(node)
            if not isinstance(node, FunctionNode):
                waiting += ast.iter_child_nodes(node)
        yield scope, own


def _names_of_sets(scope: ast.AST, nodes: list[ast.AST]) -> set[str]:
    """Return the names of sets in a scope: annotated as sets, or assigned only sets as far as the text shows."""
    names: set[str] = set()
    if isinstance(scope, FunctionNode):
        arguments = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
        names |= {argument.arg for argument in arguments if _is_set_annotation(argument.annotation)}
    for node in nodes:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if _is_set_annotation(annotation):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_set(value, set()):
                names.add(name)
    return names


def _attributes_of_sets(file: SourceFile) -> set[str]:
    """Return `self.x` for each attribute that a class of the file annotates as a set or assigns a set to."""
    names: set[str] = set()
    for node in file.nodes:
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                names |= {f"self.{name}"} if _is_set_annotation(annotation) else set()
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                names |= {f"self.{name}"} if _is_set(value, set()) else set()
            case ast.ClassDef(body=body):
                names |= {
                    f"self.{member.target.id}"
                    for member in body
                    if isinstance(member, ast.AnnAssign)
                    and isinstance(member.target, ast.Name)
                    and _is_set_annotation(member.annotation)
                }
    return names


def _ordered_reads(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the iterables whose order a node depends on."""
    match node:
        case ast.For(iter=seen) | ast.AsyncFor(iter=seen) | ast.Starred(value=seen) | ast.YieldFrom(value=seen):
            yield seen
        case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
            yield from (generator.iter for generator in generators)
        case ast.GeneratorExp(generators=generators):
            yield from (generator.iter for generator in generators)
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _IN_ORDER:
            yield from arguments
        case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys"), args=arguments):
            yield from arguments


def _order_free_arguments(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDER_FREE:
        return node.args
    return [*node.elts] if isinstance(node, ast.Set) else []


def _is_set(node: ast.expr, sets: set[str]) -> bool:
    """Whether an expression is a set, judged by its text and the known names of sets."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in {"set", "frozenset"}
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            return method in _SET_METHODS and _is_set(owner, sets)
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), left=left, right=right):
            return _is_set(left, sets) or (_is_set(right, sets) and not isinstance(node.op, ast.Sub))
        case ast.IfExp(body=body, orelse=orelse):
            return _is_set(body, sets) or _is_set(orelse, sets)
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in sets
    return False


def _is_set_annotation(annotation: ast.expr | None) -> bool:
    """Whether an annotation is a set, possibly with `| None` or Final."""
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SET_TYPES
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar"), slice=inner):
            return _is_set_annotation(inner)
        case ast.Subscript(value=value):
            return _is_set_annotation(value)
        case ast.BinOp(left=left, right=right):
            return _is_set_annotation(left) or _is_set_annotation(right)
    return False
