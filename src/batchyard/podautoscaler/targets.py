"""The scaled object of a HorizontalPodAutoscaler: its replicas, its selector, and the write that changes its replicas.

Native kinds with the subresource `scale` can be scaled, and custom kinds whose definition has this subresource.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_from_definition
from batchyard.api.printing.cells import format_selector, value_at
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.selection import parse_label_selector
from batchyard.base.instant import SECOND, Duration, Instant
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

    def parsed_selector(self) -> meta.Selector:
        """Return the selector; raise SelectorError if it is malformed."""
        selector = meta.parse_selector(self.selector)
        if selector is not None:
            return selector
        try:
            requirements = parse_label_selector(self.selector_text)
        except StatusError as error:
            raise SelectorError(str(error)) from error
        return meta.Selector(requirements)


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


# The pods and selectors of one namespace, indexed by label, and the work that its autoscalers may cause.

Label: TypeAlias = tuple[str, str]
#: The pods that the autoscalers of a namespace may examine per second; one of them may exceed that in advance.
_PODS_PER_SECOND: Final = 5000
#: The most comparisons of a pod with a selector in one search for the other autoscalers of the pods.
_COMPARISONS_MAX: Final = 50_000
_INDEX_LIFETIME: Final = 3 * SECOND
#: The least time between the computations of autoscalers that have waited.
_TURN: Final = SECOND // 100


def required_label(selector: meta.Selector) -> Label | None:
    """Return a label that all objects have that a selector selects; None if it permits several."""
    for requirement in selector.requirements:
        if requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.key, requirement.values[0]
    return None


class ScaledNamespace:
    """The pods of a namespace and the selectors of its autoscalers, both by label, with a limit of work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pods_by_label: dict[Label, list[meta.Obj]] = {}
        self._expires_at: Instant = -1
        self._selectors: dict[meta.Key, meta.Selector] = {}
        self._keys_by_label: dict[Label | None, dict[meta.Key, None]] = {}
        self._free_at: Instant = -SECOND
        self._last_turn: Instant = 0

    def set_selector(self, key: meta.Key, selector: meta.Selector | None) -> None:
        """Record the selector of an autoscaler's target; None forgets the autoscaler."""
        old = self._selectors.pop(key, None)
        if old is not None:
            label = required_label(old)
            self._keys_by_label[label].pop(key, None)
            if not self._keys_by_label[label]:
                del self._keys_by_label[label]
        if selector is not None:
            self._selectors[key] = selector
            self._keys_by_label.setdefault(required_label(selector), {})[key] = None

    def turn(self, now: Instant) -> Instant:
        """Return when an autoscaler may be computed: now, or later if the autoscalers have caused too much work."""
        if self.is_idle(now):
            return now
        self._last_turn = max(self._last_turn, self._free_at) + _TURN
        return self._last_turn

    def is_idle(self, now: Instant) -> bool:
        """Return whether the autoscalers have not caused too much work."""
        return now >= self._free_at

    def count_work(self, pods: int, now: Instant) -> None:
        """Count examined pods, which may delay the next computations."""
        duration: Duration = pods * SECOND // _PODS_PER_SECOND
        self._free_at = max(self._free_at, now - SECOND) + duration

    def select_pods(self, selector: meta.Selector, reader: Reader, now: Instant, *, is_current: bool) -> list[meta.Obj]:
        """Return the selected pods; unless they must be current, new pods are missing for a few seconds."""
        label = required_label(selector)
        if is_current or label is None:
            found = reader.list(scheme.POD, self.name)
            self.count_work(len(found), now)
            return [pod for pod in found if selector.matches(labels_of(pod))]
        if now >= self._expires_at:
            self._index_pods(reader, now)
        candidates = self._pods_by_label.get(label, ())
        self.count_work(len(candidates) + 1, now)
        pods = (reader.get(meta.key_of(pod)) for pod in candidates)
        return [pod for pod in pods if pod is not None and selector.matches(labels_of(pod))]

    def _index_pods(self, reader: Reader, now: Instant) -> None:
        pods = reader.list(scheme.POD, self.name)
        self._expires_at, self._pods_by_label = now + _INDEX_LIFETIME, {}
        for pod in pods:
            for label in labels_of(pod).items():
                self._pods_by_label.setdefault(label, []).append(pod)
        self.count_work(len(pods) // 4, now)

    def autoscalers_of(self, pods: Sequence[meta.Obj], now: Instant) -> list[meta.Key]:
        """Return the autoscalers that select at least one of the pods, as far as the limit of comparisons permits."""
        found: set[meta.Key] = set()
        comparisons = 0
        for labels in {frozenset(labels_of(pod).items()): labels_of(pod) for pod in pods}.values():
            for label in (None, *labels.items()):
                keys = self._keys_by_label.get(label, {})
                found.update(key for key in keys if key not in found and self._selectors[key].matches(labels))
                comparisons += len(keys) + 1
            if comparisons > _COMPARISONS_MAX:
                break
        self.count_work(comparisons // 10, now)
        return sorted(found)


def labels_of(pod: meta.Obj) -> Mapping[str, str]:
    """Return the labels of a pod."""
    return pod["metadata"].get("labels") or {}
