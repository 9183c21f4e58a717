"""The scaled object of a HorizontalPodAutoscaler: its replicas, its selector, and the write that changes its replicas.

Native kinds with the subresource `scale` can be scaled, and custom kinds whose definition has this subresource.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_from_definition
from batchyard.api.printing.cells import format_selector, value_at
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.selection import parse_label_selector
from batchyard.interfaces.client import Reader, Update

_NOT_SERVED: str = "the server could not find the requested resource"
_NATIVE_PATHS: Mapping[str, str] = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


class ScaleError(Exception):
    """The scale of the target cannot be read; the message is that of Kubernetes."""


class SelectorError(Exception):
    """The selector of the target is malformed."""


class ScaleTarget(NamedTuple):
    """A scaled object with its desired and current replicas, and its selector as text; '' without a selector."""

    obj: meta.Obj
    replicas: int
    selector_text: str
    selector: Mapping[str, Any] | None
    replicas_fields: Sequence[str]

    def scaled_to(self, replicas: int) -> Update:
        """Return the write that sets the desired replicas."""
        return Update(meta.with_path(self.obj, self.replicas_fields, replicas))

    def matcher(self) -> Callable[[Mapping[str, str]], bool]:
        """Return whether labels match the selector; raise SelectorError if it is malformed."""
        if self.selector is not None:
            selector = meta.parse_selector(self.selector)
            return lambda labels: selector is not None and selector.matches(labels)
        try:
            requirements = parse_label_selector(self.selector_text)
        except StatusError as error:
            raise SelectorError(str(error)) from error
        return meta.Selector(requirements).matches


def find_target(reference: Mapping[str, Any], namespace: str, reader: Reader) -> ScaleTarget:
    """Return the target of a reference in a namespace; raise ScaleError if it cannot be scaled."""
    group = (reference.get("apiVersion") or "").rpartition("/")[0]
    served_kind, paths = _scalable_kind(group, reference.get("kind") or "", reader)
    obj = reader.get(meta.Key(served_kind.constant, namespace, reference["name"]))
    if obj is None:
        raise ScaleError(f'{served_kind.group_resource} "{reference["name"]}" not found')
    fields = _fields_of(paths["specReplicasPath"])
    replicas = value_at(obj, *fields)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        path = paths["specReplicasPath"]
        raise ScaleError(f'Internal error occurred: the spec replicas field "{path}" does not exist')
    selector = value_at(obj, *_fields_of(paths.get("labelSelectorPath") or ""))
    if not paths.get("labelSelectorPath") or selector is None:
        return ScaleTarget(obj, replicas, "", None, fields)
    if not isinstance(selector, Mapping):
        return ScaleTarget(obj, replicas, str(selector), None, fields)
    if served_kind.constant == scheme.REPLICATION_CONTROLLER:
        selector = {"matchLabels": selector}
    return ScaleTarget(obj, replicas, format_selector(selector), selector, fields)


def _scalable_kind(group: str, kind: str, reader: Reader) -> tuple[ServedKind, Mapping[str, str]]:
    for served_kind in scheme.KINDS:
        if (served_kind.group, served_kind.kind) == (group, kind):
            if served_kind.constant not in scheme.SCALABLE_KINDS:
                raise ScaleError(_NOT_SERVED)
            return served_kind, _NATIVE_PATHS
    for definition in reader.list(DEFINITION):
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, kind) and is_served(definition):
            versions = sorted(spec["versions"], key=lambda version: not version.get("storage"))
            scales = [scale for each in versions if (scale := (each.get("subresources") or {}).get("scale"))]
            if not scales:
                raise ScaleError(_NOT_SERVED)
            return kind_from_definition(definition), scales[0]
    raise ScaleError(f'no matches for kind "{kind}" in group "{group}"')


def _fields_of(path: str) -> Sequence[str]:
    return path.strip(".").split(".")
