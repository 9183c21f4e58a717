"""Names that may be called or imported only in listed files; the table is `tidy.toml`."""

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidy.source import SourceFile, Violation

_BUILTINS = frozenset(dir(builtins))
_BROAD = frozenset({"Exception", "BaseException"})


@dataclass(frozen=True)
class NameBan:
    """Names that only the files in `allowed` may use, each with a reason.

    A name is a module (`time`), something in one (`time.monotonic`), a builtin (`print`), a method of anything
    (`.sleep`) or a broad handler (`except Exception`, which a bare `except` is too). The longest name decides.
    """

    names: tuple[str, ...]
    within: tuple[str, ...]
    instead: str
    allowed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "NameBan":
        """Return the ban of a row of the table."""
        return cls(tuple(row["names"]), tuple(row["within"]), row["instead"], row.get("allowed", {}))


def banned_names(file: SourceFile, bans: list[NameBan]) -> Iterator[Violation]:
    """Yield uses of banned names outside of their allowed files."""
    by_name = {name: ban for ban in bans for name in ban.names if any(file.lies_in(place) for place in ban.within)}
    for line, used in _uses(file):
        name = _longest(used, by_name)
        if name is not None and not any(file.lies_in(place) for place in by_name[name].allowed):
            yield Violation(file.path, line, "banned-name", name, f"uses {used}", by_name[name].instead)


def _longest(used: str, by_name: Mapping[str, NameBan]) -> str | None:
    """Return the longest banned name that equals or contains the used name."""
    parts = used.split(".")
    candidates = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in candidates if name and name in by_name), None)


def _uses(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Every imported, builtin or method name used, with its line."""
    imported = _imported(file)
    for node in file.nodes:
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((node.lineno, f"{module}.{name.name}") for name in names)
            case ast.Attribute(attr=attribute):
                yield node.lineno, _dotted(node, imported) or f".{attribute}"
            case ast.Name(id=name, ctx=ast.Load()) if name in _BUILTINS and name not in imported:
                yield node.lineno, name
            case ast.ExceptHandler(type=caught) if caught is None or _is_broad(caught):
                yield node.lineno, "except Exception"
            case ast.Call(func=ast.Attribute(attr="suppress"), args=caught) if any(map(_is_broad, caught)):
                yield node.lineno, "except Exception"


def _imported(file: SourceFile) -> dict[str, str]:
    """Return the full dotted name of each imported name."""
    names: dict[str, str] = {}
    for node in file.nodes:
        if isinstance(node, ast.Import):
            names |= {name.asname: name.name for name in node.names if name.asname}
            names |= {
                name.name.partition(".")[0]: name.name.partition(".")[0] for name in node.names if not name.asname
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return names


def _dotted(node: ast.expr, imported: Mapping[str, str]) -> str | None:
    """Return the full name of an attribute of an imported name, or None."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, imported)
        return f"{owner}.{node.attr}" if owner else None
    return imported.get(node.id) if isinstance(node, ast.Name) else None


def _is_broad(caught: ast.expr) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return isinstance(caught, ast.Name) and caught.id in _BROAD
