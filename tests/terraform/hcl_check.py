"""Checks of a folder of HCL without Terraform: unknown arguments and undefined names.

python-hcl2 reads configurations; `schema` defines the arguments of resources.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hcl2

from terraform.schema import Body, ProviderSchema, is_required, is_settable

#: Meta-arguments of resources and module calls, which the provider does not get.
_META = {"for_each", "count", "depends_on", "lifecycle", "provider"}
_BLOCK = "__is_block__"
_NOISE = {_BLOCK, "__comments__", "__inline_comments__"}
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_REFERENCE = re.compile(r"\b(var|local|module|google_\w+)((?:\.\w+|\[[^\]]*\])+)")
_COLLECTION = ("list", "set", "map")


@dataclass(frozen=True)
class HclResource:
    """A resource of the configuration."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class HclModule:
    """The .tf files of one folder, together."""

    text: str
    resources: Sequence[HclResource]
    variables: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, Mapping[str, Any]]
    local_names: frozenset[str]
    calls: Mapping[str, Mapping[str, Any]]


def read_module(texts: Sequence[str]) -> HclModule:
    """Read a module from the texts of its files."""
    documents = [hcl2.loads(text) for text in texts]

    def rows(kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for document in documents:
            for block in document.get(kind, ()):
                yield from ((_bare(name), body) for name, body in block.items() if name not in _NOISE)

    resources = [
        HclResource(kind, _bare(name), body) for kind, named in rows("resource") for name, body in _named(named)
    ]
    return HclModule(
        text=_COMMENT.sub("", "\n".join(texts)),
        resources=resources,
        variables=dict(rows("variable")),
        outputs=dict(rows("output")),
        local_names=frozenset(name for name, _ in rows("locals")),
        calls=dict(rows("module")),
    )


def flaws(module: HclModule, children: Mapping[str, HclModule], schema: ProviderSchema) -> Iterator[str]:
    """All flaws of a module; `children` are the called modules by `source`."""
    for resource in module.resources:
        place = f"{resource.kind}.{resource.name}"
        if resource.kind in schema.resources:
            arguments = {name: value for name, value in resource.body.items() if name not in _META}
            yield from _body_flaws(arguments, schema.body(resource.kind), place)
        else:
            yield f"{place}: no such resource"
    yield from _name_flaws(module)
    yield from _call_flaws(module, children)
    yield from _reference_flaws(module, children, schema)


# --- arguments ---


def _body_flaws(body: Mapping[str, Any], known: Body, place: str) -> Iterator[str]:
    given = dict(_entries(body))
    for name, values in given.items():
        entry = known.get(name)
        if entry is None or not is_settable(entry):
            yield f"{place}: no argument {name}"
        else:
            yield from _entry_flaws(values, entry, f"{place}.{name}")
    for name, entry in known.items():
        if is_required(entry) and name not in given:
            yield f"{place}: {name} is required"


def _entry_flaws(values: Any, entry: Any, place: str) -> Iterator[str]:
    is_block = isinstance(entry, dict) and entry["is"] == "block"
    if is_block != _holds_blocks(values):
        yield f"{place} is {'a block' if is_block else 'an attribute'}"
    elif is_block:
        if len(values) > entry.get("max", len(values)):
            yield f"{place} may be there once"
        for value in values:
            yield from _body_flaws(value, entry["of"], place)
    elif _is_literal(values) and isinstance(values, list) != entry.startswith(_COLLECTION):
        yield f"{place} is {entry.split()[0]}"


def _entries(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments and blocks of a body; a dynamic block counts as its generated block."""
    yield from ((name, value) for name, value in body.items() if name not in _NOISE and name != "dynamic")
    for dynamic in body.get("dynamic", ()):
        yield from ((_bare(name), block["content"]) for name, block in dynamic.items() if name not in _NOISE)


def _holds_blocks(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], dict) and _BLOCK in values[0]


def _is_literal(value: Any) -> bool:
    """Whether a value is not an expression: expressions have the form `${...}`."""
    return not (isinstance(value, str) and value.startswith("${"))


# --- names ---


def _name_flaws(module: HclModule) -> Iterator[str]:
    result = set(references(module.text))
    for name, body in module.variables.items():
        if ("var", name) not in {path[:2] for path in result}:
            yield f"var.{name} is used nowhere"
        yield from (f"var.{name} has no {field}" for field in ("description", "type") if field not in body)
    yield from (
        f"output.{name} has no description" for name, body in module.outputs.items() if "description" not in body
    )


def _call_flaws(module: HclModule, children: Mapping[str, HclModule]) -> Iterator[str]:
    for name, call in module.calls.items():
        variables = children[_bare(call["source"])].variables
        given = {field for field in call if field not in _META | _NOISE | {"source"}}
        needed = {field for field, body in variables.items() if "default" not in body}
        yield from (f"module.{name} has no variable {field}" for field in sorted(given - set(variables)))
        yield from (f"module.{name} is not given {field}" for field in sorted(needed - given))


def _reference_flaws(module: HclModule, children: Mapping[str, HclModule], schema: ProviderSchema) -> Iterator[str]:
    there = {(resource.kind, resource.name) for resource in module.resources}
    for kind, *path in sorted(set(references(module.text))):
        place = ".".join((kind, *path))
        if kind == "module":
            child = children[_bare(module.calls[path[0]]["source"])] if path[0] in module.calls else None
            leads = child is not None and (len(path) == 1 or path[1] in child.outputs)
        elif kind in {"var", "local"}:
            leads = path[0] in (module.variables if kind == "var" else module.local_names)
        else:
            leads = (kind, path[0]) in there and (len(path) == 1 or path[1] in schema.body(kind))
        if not leads:
            yield f"{place} leads nowhere"


def references(text: str) -> Iterator[tuple[str, ...]]:
    """References of expressions, without indices: ("var", "zones"), ("google_service_account", "nodes", "email")."""
    for kind, path in _REFERENCE.findall(text):
        yield (kind, *re.findall(r"\.(\w+)", re.sub(r"\[[^\]]*\]", "", path)))


def _bare(name: str) -> str:
    return name.strip('"')


def _named(rows: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((name, body) for name, body in rows.items() if name not in _NOISE)
