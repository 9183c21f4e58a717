"""Bindings and evictions of pods (`pods/NAME/binding`, `bindings`, `eviction`), and the lookup of a pod's containers.

Sources: Kubernetes's pkg/registry/core/pod/storage/storage.go and pkg/apis/core/validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, with_metadata, with_path
from batchyard.api.views import pods
from batchyard.api.views.pods import SCHEDULED, is_terminating, node_of, with_condition
from batchyard.apiserver.request import (
    ApiRequest,
    DeleteOptions,
    Response,
    StatusError,
    bad_request,
    causes_of,
    delete_options,
    method_not_allowed,
    write_options,
)
from batchyard.apiserver.resources import ApiObjectStore, EndpointHandlers, Resource
from batchyard.apiserver.serialization import read_body
from batchyard.apiserver.virtual_resources import unstored, unstored_kind
from batchyard.base.instant import Instant
from batchyard.disruption.controller import EvictionRefusal, verdict
from batchyard.interfaces.client import Delete, ObjectReader, Propagation, Update, UpdateStatus, Write
from batchyard.interfaces.containers import Containers

# --- pod containers ---
#
# Lookup of pods and their containers for subresources.
#
# Source: Kubernetes's pkg/registry/core/pod/strategy.go.


_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


class PodContainers:
    """The pods, and the runtime of their containers."""

    def __init__(self, objects: ObjectReader, runtime: Containers) -> None:
        self._objects = objects
        self.runtime = runtime

    def pod(self, namespace: str, name: str) -> Obj:
        """Return the pod. Raises Refused if it does not exist."""
        found = self._objects.get(Key(scheme.POD, namespace, name))
        if found is None:
            raise pod_not_found(name)
        return found


def pod_not_found(name: str) -> StatusError:
    """Return the 404 error of a missing pod."""
    return StatusError(404, "NotFound", f'pods "{name}" not found', {"name": name, "kind": "pods"})


def chosen_container(pod: Obj, name: str) -> str:
    """Return the container of a name, or the only one. Raises Refused if the name is invalid or missing."""
    spec, pod_name = pod["spec"], pod["metadata"]["name"]
    names = [each["name"] for field in _CONTAINERS for each in spec.get(field) or ()]
    if name:
        if name not in names:
            raise bad_request(f"container {name} is not valid for pod {pod_name}")
        return name
    if len(spec["containers"]) == 1:
        only: Mapping[str, Any] = spec["containers"][0]
        return str(only["name"])
    choice = f"[{' '.join(names)}]"
    raise bad_request(f"a container name must be specified for pod {pod_name}, choose one of: {choice}")


def is_somewhere(pod: Obj) -> bool:
    """Report whether the pod has a node, or has container statuses as in simulations without nodes."""
    return bool(pod["spec"].get("nodeName") or (pod.get("status") or {}).get("containerStatuses"))


_KIND: Final = "Binding"
_DONE: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Bindings:
    """The handlers of pod bindings."""

    def __init__(self, objects: ApiObjectStore, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now

    def of_a_pod(self) -> EndpointHandlers:
        """Return the handlers of `pods/NAME/binding`."""
        return EndpointHandlers("", "v1", _KIND, {"POST": self._bind_named})

    def resource(self) -> Resource:
        """Return the resource `bindings`, where the name of the Binding names the pod."""
        info = unstored_kind("", "v1", _KIND, "bindings", "binding", namespaced=True)
        return unstored(info, {"": EndpointHandlers("", "v1", _KIND, {"POST": self._bind})})

    def _bind(self, request: ApiRequest, namespace: str, name: str) -> Response:
        """Bind the pod that the Binding is named after."""
        if name:
            raise method_not_allowed()
        return self._bound(request, namespace, _sent(request))

    def _bind_named(self, request: ApiRequest, namespace: str, name: str) -> Response:
        sent = _sent(request)
        if sent["metadata"].get("name", name) != name:
            raise bad_request("name in URL does not match name in Binding object")
        return self._bound(request, namespace, {**sent, "metadata": {**sent["metadata"], "name": name}})

    def _bound(self, request: ApiRequest, namespace: str, sent: Mapping[str, Any]) -> Response:
        options, metadata, target = write_options(request), sent["metadata"], sent.get("target")
        name = str(metadata.get("name", ""))
        if metadata.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        node = _target(target, name)
        pod = self._objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise pod_not_found(name)
        _check_free(pod, metadata)
        placed: Obj = with_path(pod, ("spec", "nodeName"), node)
        annotations = {**(pod["metadata"].get("annotations") or {}), **(metadata.get("annotations") or {})}
        if annotations:
            placed = with_metadata(placed, annotations=annotations)
        placed = with_condition(placed, SCHEDULED, True, ("", ""), self._now())
        done = self._objects.attempt(Update(placed, is_whole=True), dry_run=options.dry_run)
        if done.error is not None:
            raise _conflict(name, str(done.error))
        return Response(201, _DONE)


def _sent(request: ApiRequest) -> Mapping[str, Any]:
    sent = read_body(request).value
    if not isinstance(sent, Mapping) or sent.get("kind", _KIND) != _KIND:
        raise bad_request("the request body is not a Binding")
    metadata = sent.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise bad_request("the metadata of the Binding is not an object")
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, Mapping) or not all(isinstance(text, str) for text in annotations.values()):
        raise bad_request("the annotations of the Binding are not strings")
    return {**sent, "metadata": metadata}


def _target(target: Any, name: str) -> str:
    """Return the target node of a Binding. Raises Refused if it is invalid."""
    if not isinstance(target, Mapping | None):
        raise bad_request("the target of the Binding is not an object")
    kind, node = (target or {}).get("kind") or "", (target or {}).get("name") or ""
    faults = []
    if kind not in ("", "Node"):
        problem = f'Unsupported value: "{kind}": supported values: "Node", "<empty>"'
        faults.append(FieldError("target.kind", problem))
    if not node or not isinstance(node, str):
        faults.append(FieldError("target.name", "Required value"))
    if faults:
        details = {"name": name, "kind": _KIND, "causes": causes_of(tuple(faults))}
        raise StatusError(422, "Invalid", f'{_KIND} "{name}" is invalid: {InvalidObject(tuple(faults))}', details)
    return str(node)


def _check_free(pod: Obj, wanted: Mapping[str, Any]) -> None:
    """Raise Refused if the preconditions fail or the pod cannot be bound: deleted, already bound or gated."""
    name, found = pod["metadata"]["name"], pod["metadata"]
    for what, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        asked = wanted.get(field)
        if asked and asked != found[field]:
            message = f"{what} in precondition: {asked}, {what} in object meta: {found[field]}"
            raise _conflict(name, f"Precondition failed: {message}", "pods")
    if is_terminating(pod):
        raise _conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node_of(pod):
        raise _conflict(name, f'pod {name} is already assigned to node "{node_of(pod)}"')
    if pod["spec"].get("schedulingGates"):
        raise _conflict(name, f"pod {name} has non-empty .spec.schedulingGates")


def _conflict(name: str, why: str, resource: str = "pods/binding") -> StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, {"name": name, "kind": resource})


# --- evictions ---
#
# `pods/NAME/eviction`: an API-initiated eviction, as from `kubectl drain`, which a PodDisruptionBudget can reject.
#
# A running pod first gets the DisruptionTarget condition, so that its Job can ignore the failure. Source: Kubernetes's
# pkg/registry/core/pod/storage/eviction.go.


_GROUP: Final = "policy"
_EVICTIONS_KIND: Final = "Eviction"
#: The older version is accepted too, as in Kubernetes.
_VERSIONS: Final = ("policy/v1", "policy/v1beta1")


class Evictions:
    """The handler of pod evictions."""

    def __init__(self, objects: ApiObjectStore, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now

    def answer(self) -> EndpointHandlers:
        """Return the handlers of the subresource."""
        return EndpointHandlers(_GROUP, "v1", _EVICTIONS_KIND, {"POST": self._create})

    def _create(self, request: ApiRequest, namespace: str, name: str) -> Response:
        sent = _evictions_sent(request, namespace, name)
        asked = sent.get("deleteOptions")
        options = delete_options(request, {} if asked is None else asked)
        # A dry run in the query applies even if the body does not set it.
        options = options._replace(dry_run=options.dry_run or write_options(request).dry_run)
        pod = self._objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise pod_not_found(name)
        if unmet := options.unmet(pod):
            raise _evictions_conflict(name, unmet)
        self._evict(pod, options)
        return Response(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})

    def _evict(self, pod: Obj, options: DeleteOptions) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        judged = verdict(pod, self._objects.list(scheme.POD_DISRUPTION_BUDGET, namespace), self._now())
        if judged.refusal is not None:
            raise _refused(judged.refusal)
        if judged.spent is not None:
            self._done(UpdateStatus(judged.spent), name, dry_run=options.dry_run)
        if not pods.is_terminal(pod) and not pods.is_terminating(pod):
            disrupted = pods.disrupted(pod, pods.BY_EVICTION, self._now())
            self._done(UpdateStatus(disrupted), name, dry_run=options.dry_run)
        gone = Delete(Key(scheme.POD, namespace, name), options.grace, Propagation.BACKGROUND, options.uid)
        self._done(gone, name, dry_run=options.dry_run)

    def _done(self, write: Write, name: str, *, dry_run: bool) -> None:
        error = self._objects.attempt(write, dry_run=dry_run).error
        if error is not None:
            raise _evictions_conflict(name, str(error))


def _evictions_sent(request: ApiRequest, namespace: str, name: str) -> Mapping[str, Any]:
    """Return the Eviction in the body. Raises Refused if it is invalid or names another pod."""
    sent = read_body(request).value
    if not isinstance(sent, Mapping) or (sent.get("kind") or _EVICTIONS_KIND) != _EVICTIONS_KIND:
        raise bad_request("the request body is not an Eviction")
    version = sent.get("apiVersion") or _VERSIONS[0]
    if version not in _VERSIONS:
        message = f"the API version in the data ({version}) does not match the expected API version ({_VERSIONS[0]})"
        raise bad_request(message)
    metadata = sent.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    if (metadata.get("namespace") or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object")
    return sent


def _refused(refusal: EvictionRefusal) -> StatusError:
    details: dict[str, Any] = {}
    if refusal.cause:
        details["causes"] = [{"reason": "DisruptionBudget", "message": refusal.cause}]
    if refusal.retry_after:
        details["retryAfterSeconds"] = refusal.retry_after
    return StatusError(refusal.code, refusal.reason, refusal.message, details)


def _evictions_conflict(name: str, why: str) -> StatusError:
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": {why}')
