"""YAML output of rendered files, reproducible byte for byte, and the labels of a platform's objects."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import yaml

from batchyard.api import scheme
from batchyard.api.meta import Obj

FILE_HEADER: Final = "# Made by `batchyard platform render`: change the platform's file, and render again.\n"


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one YAML text with the file header; fields keep their order."""
    return FILE_HEADER + "---\n".join(dump_yaml(document) for document in documents)


def dump_yaml(document: Mapping[str, Any]) -> str:
    """Return one document as YAML, without the file header; fields keep their order."""
    text: str = yaml.dump(document, Dumper=_PlatformYamlDumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


class _PlatformYamlDumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)


def _represent_text(dumper: _PlatformYamlDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_PlatformYamlDumper.add_representer(str, _represent_text)


PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class RenderedObject(NamedTuple):
    """An object to write to the manifests, and the path of the platform.yaml field that it comes from."""

    obj: Obj
    path: str


def make_platform_object(
    kind: str, platform_name: str, name: str, namespace: str = "", **fields: Any
) -> dict[str, Any]:
    """Return an object of a kind, in the kind's storage version, with these fields and the labels of the platform."""
    served_kind = scheme.kind_info(kind)
    metadata: dict[str, Any] = {"name": name, "labels": labels_of(platform_name)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": served_kind.api_version, "kind": served_kind.kind, "metadata": metadata, **fields}


def labels_of(platform_name: str) -> Mapping[str, str]:
    """Return the labels that mark an object as part of the platform."""
    return {MANAGED_BY: "batchyard", PART_OF: platform_name}
