"""Bindings and evictions of pods (`pods/NAME/binding`, `bindings`, `eviction`), and the lookup of a pod's containers.

Sources: Kubernetes's pkg/registry/core/pod/storage/storage.go and pkg/apis/core/validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, with_metadata, with_path
from batchyard.api.views import pods
from batchyard.api.views.pods import SCHEDULED, bound_node, is_terminating, with_condition
from batchyard.apiserver import request as api_request
from batchyard.apiserver.built_in import EphemeralContainersStrategy
from batchyard.apiserver.handlers.write import WriteHandler
from batchyard.apiserver.resources import (
    ApiObjectStore,
    EndpointHandlers,
    Resource,
    ResourcePath,
    conflict_error,
    execute_write,
    not_found_error,
)
from batchyard.apiserver.serialization import read_body
from batchyard.apiserver.virtual_resources import virtual_kind, virtual_resource
from batchyard.base.instant import Instant
from batchyard.disruption.controller import EvictionRefusal, eviction_decision
from batchyard.interfaces.client import Delete, ObjectReader, Update, UpdateStatus
from batchyard.interfaces.containers import Containers

# Lookup of pods and their containers for subresources.
#
# Source: Kubernetes's pkg/registry/core/pod/strategy.go.


_PODS: Final = scheme.kind_info(scheme.POD)
_CONTAINER_FIELDS: Final = ("initContainers", "containers", "ephemeralContainers")


class PodContainers:
    """Access to the stored pods and to the runtime of their containers."""

    def __init__(self, objects: ObjectReader, runtime: Containers) -> None:
        self._objects = objects
        self.runtime = runtime

    def get_pod(self, namespace: str, name: str) -> Obj:
        """Return a pod. Raises StatusError if it does not exist."""
        pod_object = self._objects.get(Key(scheme.POD, namespace, name))
        if pod_object is None:
            raise not_found_error(_PODS, name)
        return pod_object

    def check_has_process(self, pod: Obj) -> None:
        """Raise StatusError (400) if a pod is not bound to a node, or is simulated and therefore has no processes."""
        if not has_host(pod):
            raise api_request.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        if reason := self.runtime.no_process_reason(pod):
            raise api_request.bad_request(reason)


def select_container(pod: Obj, name: str) -> str:
    """Return the container name to use: `name`, or if it is '' that of the pod's only regular container.

    Raises StatusError if there is no such container, or `name` is '' and the pod has several regular containers.
    """
    spec, pod_name = pod["spec"], pod["metadata"]["name"]
    names = [each["name"] for field in _CONTAINER_FIELDS for each in spec.get(field) or ()]
    if name:
        if name not in names:
            raise api_request.bad_request(f"container {name} is not valid for pod {pod_name}")
        return name
    if len(spec["containers"]) == 1:
        only_container: Mapping[str, Any] = spec["containers"][0]
        return str(only_container["name"])
    choices_text = f"[{' '.join(names)}]"
    raise api_request.bad_request(
        f"a container name must be specified for pod {pod_name}, choose one of: {choices_text}"
    )


def has_host(pod: Obj) -> bool:
    """Return whether a pod is bound to a node, or has container statuses, as in simulations without nodes."""
    return bool(pod["spec"].get("nodeName") or (pod.get("status") or {}).get("containerStatuses"))


# Ephemeral containers, which `kubectl debug` adds to pods that run.


class EphemeralContainersHandler:
    """The handler of the subresource `ephemeralcontainers` of pods."""

    def __init__(
        self, objects: ApiObjectStore, runtime: Containers, pods_resource: Resource, now: Callable[[], Instant]
    ) -> None:
        self._writes = WriteHandler(objects, now)
        self._pods = PodContainers(objects, runtime)
        self._resource = pods_resource._replace(strategy=EphemeralContainersStrategy(), guard=None)

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of `pods/NAME/ephemeralcontainers`."""
        write = dict.fromkeys(("PUT", "PATCH"), self._write)
        return EndpointHandlers("", "v1", "Pod", {"GET": self._get, **write})

    def _get(self, _request: api_request.ApiRequest, namespace: str, name: str) -> api_request.Response:
        pod = self._pods.get_pod(namespace, name)
        return api_request.Response(200, self._resource.strategy.render(pod, "v1"))

    def _write(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.Response:
        self._pods.check_has_process(self._pods.get_pod(namespace, name))
        path = ResourcePath(self._resource, "v1", namespace, name, "ephemeralcontainers", "v1")
        return self._writes.handle(request, path)


_KIND: Final = "Binding"
_SUCCESS_STATUS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class BindingHandlers:
    """The handlers of requests that bind a pod to a node."""

    def __init__(self, objects: ApiObjectStore, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now

    def pod_binding_handlers(self) -> EndpointHandlers:
        """Return the handlers of `pods/NAME/binding`."""
        return EndpointHandlers("", "v1", _KIND, {"POST": self._bind_named})

    def resource(self) -> Resource:
        """Return the resource `bindings`: a Binding created there has the name of the pod that it binds."""
        binding_info = virtual_kind("", "v1", _KIND, "bindings", "binding", namespaced=True)
        return virtual_resource(binding_info, {"": EndpointHandlers("", "v1", _KIND, {"POST": self._bind})})

    def _bind(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.Response:
        if name:
            raise api_request.method_not_allowed_error()
        return self._bind_pod(request, namespace, _read_binding(request))

    def _bind_named(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.Response:
        binding = _read_binding(request)
        if binding["metadata"].get("name", name) != name:
            raise api_request.bad_request("name in URL does not match name in Binding object")
        return self._bind_pod(request, namespace, {**binding, "metadata": {**binding["metadata"], "name": name}})

    def _bind_pod(
        self, request: api_request.ApiRequest, namespace: str, binding: Mapping[str, Any]
    ) -> api_request.Response:
        options, metadata, target_reference = (
            api_request.parse_write_options(request),
            binding["metadata"],
            binding.get("target"),
        )
        name = str(metadata.get("name", ""))
        if metadata.get("namespace", namespace) != namespace:
            raise api_request.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        node = _target_node_name(target_reference, name)
        pod = self._objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise not_found_error(_PODS, name)
        _check_bindable(pod, metadata)
        bound_pod: Obj = with_path(pod, ("spec", "nodeName"), node)
        annotations = {**(pod["metadata"].get("annotations") or {}), **(metadata.get("annotations") or {})}
        if annotations:
            bound_pod = with_metadata(bound_pod, annotations=annotations)
        bound_pod = with_condition(bound_pod, SCHEDULED, True, ("", ""), self._now())
        execute_write(self._objects, Update(bound_pod, is_whole=True), _PODS, name, dry_run=options.dry_run)
        return api_request.Response(201, _SUCCESS_STATUS)


def _read_binding(request: api_request.ApiRequest) -> Mapping[str, Any]:
    binding = read_body(request).value
    if not isinstance(binding, Mapping) or binding.get("kind", _KIND) != _KIND:
        raise api_request.bad_request("the request body must be an object of kind Binding")
    metadata = binding.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise api_request.bad_request("metadata of the Binding must be an object")
    annotations = metadata.get("annotations") or {}
    if not isinstance(annotations, Mapping) or not all(isinstance(text, str) for text in annotations.values()):
        raise api_request.bad_request("metadata.annotations of the Binding must be an object with string values")
    return {**binding, "metadata": metadata}


def _target_node_name(target_reference: Any, name: str) -> str:
    if not isinstance(target_reference, Mapping | None):
        raise api_request.bad_request("target of the Binding must be an object")
    kind, node = (target_reference or {}).get("kind") or "", (target_reference or {}).get("name") or ""
    errors = []
    if kind not in ("", "Node"):
        problem = f'Unsupported value: "{kind}": supported values: "Node", "<empty>"'
        errors.append(FieldError("target.kind", problem))
    if not node or not isinstance(node, str):
        errors.append(FieldError("target.name", "Required value"))
    if errors:
        details = {"name": name, "kind": _KIND, "causes": api_request.causes_of(tuple(errors))}
        raise api_request.StatusError(
            422, "Invalid", f'{_KIND} "{name}" is invalid: {InvalidObject(tuple(errors))}', details
        )
    return str(node)


def _check_bindable(pod: Obj, binding_metadata: Mapping[str, Any]) -> None:
    name, pod_metadata = pod["metadata"]["name"], pod["metadata"]
    for label, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        required_value = binding_metadata.get(field)
        if required_value and required_value != pod_metadata[field]:
            message = f"{label} in precondition: {required_value}, {label} in object meta: {pod_metadata[field]}"
            raise _conflict_error(name, f"Precondition failed: {message}", "pods")
    if is_terminating(pod):
        raise _conflict_error(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if bound_node(pod):
        raise _conflict_error(name, f'pod {name} is already assigned to node "{bound_node(pod)}"')
    if pod["spec"].get("schedulingGates"):
        raise _conflict_error(name, f"pod {name} has non-empty .spec.schedulingGates")


def _conflict_error(name: str, reason: str, resource: str = "pods/binding") -> api_request.StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {reason}'
    return api_request.StatusError(409, "Conflict", message, {"name": name, "kind": resource})


# `pods/NAME/eviction`: an API-initiated eviction, as from `kubectl drain`, which a PodDisruptionBudget can reject.
#
# A running pod first gets the DisruptionTarget condition, so that its Job can ignore the failure. Source: Kubernetes's
# pkg/registry/core/pod/storage/eviction.go.


_EVICTION_GROUP: Final = "policy"
_EVICTION_KIND: Final = "Eviction"
#: The older version is accepted too, as in Kubernetes.
_EVICTION_VERSIONS: Final = ("policy/v1", "policy/v1beta1")


class EvictionHandler:
    """The handler of API-initiated evictions of pods."""

    def __init__(self, objects: ApiObjectStore, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of the subresource `eviction`."""
        return EndpointHandlers(_EVICTION_GROUP, "v1", _EVICTION_KIND, {"POST": self._create})

    def _create(self, request: api_request.ApiRequest, namespace: str, name: str) -> api_request.Response:
        eviction = _read_eviction(request, namespace, name)
        body_options = eviction.get("deleteOptions")
        options = api_request.parse_delete_options(request, {} if body_options is None else body_options)
        # A dry run in the query applies even if the body does not set it.
        options = options._replace(dry_run=options.dry_run or api_request.parse_write_options(request).dry_run)
        pod = self._objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise not_found_error(_PODS, name)
        if unmet_precondition := options.unmet_precondition(pod):
            raise conflict_error(_PODS, name, unmet_precondition)
        self._evict(pod, options)
        return api_request.Response(
            201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        )

    def _evict(self, pod: Obj, options: api_request.DeleteOptions) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        decision = eviction_decision(pod, self._objects.list(scheme.POD_DISRUPTION_BUDGET, namespace), self._now())
        if decision.refusal is not None:
            raise _refusal_error(decision.refusal)
        if decision.new_budget is not None:
            budget, budgets = decision.new_budget, scheme.kind_info(scheme.POD_DISRUPTION_BUDGET)
            name_of_budget = budget["metadata"]["name"]
            execute_write(self._objects, UpdateStatus(budget), budgets, name_of_budget, dry_run=options.dry_run)
        if not pods.is_terminal(pod) and not pods.is_terminating(pod):
            pod_with_disruption_target = pods.with_disruption(pod, pods.DISRUPTION_BY_EVICTION, self._now())
            status_write = UpdateStatus(pod_with_disruption_target)
            execute_write(self._objects, status_write, _PODS, name, dry_run=options.dry_run)
        deletion = Delete(Key(scheme.POD, namespace, name), options.grace_seconds, options.propagation, options.uid)
        execute_write(self._objects, deletion, _PODS, name, dry_run=options.dry_run)


def _read_eviction(request: api_request.ApiRequest, namespace: str, name: str) -> Mapping[str, Any]:
    eviction = read_body(request).value
    if not isinstance(eviction, Mapping) or (eviction.get("kind") or _EVICTION_KIND) != _EVICTION_KIND:
        raise api_request.bad_request("the request body must be an object of kind Eviction")
    expected_version = _EVICTION_VERSIONS[0]
    api_version = eviction.get("apiVersion") or expected_version
    if api_version not in _EVICTION_VERSIONS:
        message = (
            f"the API version in the data ({api_version}) does not match the expected API version ({expected_version})"
        )
        raise api_request.bad_request(message)
    metadata = eviction.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    if (metadata.get("namespace") or namespace) != namespace:
        raise api_request.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if metadata.get("name") != name:
        raise api_request.bad_request("name in URL does not match name in Eviction object")
    return eviction


def _refusal_error(refusal: EvictionRefusal) -> api_request.StatusError:
    details: dict[str, Any] = {}
    if refusal.cause:
        details["causes"] = [{"reason": "DisruptionBudget", "message": refusal.cause}]
    if refusal.retry_after:
        details["retryAfterSeconds"] = refusal.retry_after
    return api_request.StatusError(refusal.code, refusal.reason, refusal.message, details)
