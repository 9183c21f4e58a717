"""YAML output of rendered files: readable and byte-for-byte reproducible."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import scheme
from batchyard.api.meta import Obj

HEADER: Final = "# Made by `batchyard platform render`: change the platform's file, and render again.\n"


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return documents as YAML, with fields in their given order."""
    return HEADER + "---\n".join(dumped(document) for document in documents)


def dumped(document: Mapping[str, Any]) -> str:
    """Return one document as YAML."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


class _Dumper(yaml.SafeDumper):
    """YAML without aliases for shared parts; list items are indented."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


# --- rendered ---
#
# A rendered object and its origin.


PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class RenderedObject(NamedTuple):
    """A rendered object, and the platform field it comes from."""

    obj: Obj
    path: str


def obj_of(kind: str, platform: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return an object in the storage version of its kind, with the platform's labels."""
    info = scheme.kind_info(kind)
    metadata: dict[str, Any] = {"name": name, "labels": labels_of(platform)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **fields}


def labels_of(platform: str) -> Mapping[str, str]:
    """Return the labels by which a platform's objects are found."""
    return {MANAGED_BY: "batchyard", PART_OF: platform}
