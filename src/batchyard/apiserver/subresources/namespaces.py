"""Namespaces in the API: clients see the `kubernetes` finalizer in the spec, and remove it with `finalize`.

The finalizer is stored in the metadata, like any other. Source: Kubernetes's pkg/registry/core/namespace.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.admission_plugins.built_in import FINALIZER, with_name_label
from batchyard.api import scheme
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Key, Obj, finalizers_of, with_finalizer, with_metadata, without_finalizer
from batchyard.apiserver.built_in import BuiltInStrategy
from batchyard.apiserver.request import ApiRequest, Response, bad_request, parse_write_options
from batchyard.apiserver.resources import ApiObjectStore, EndpointHandlers, Resource, execute_write, not_found_error
from batchyard.apiserver.serialization import read_body
from batchyard.interfaces.client import Update

_SERVED_KIND: Final = scheme.kind_info(scheme.NAMESPACE)


class NamespaceStrategy(BuiltInStrategy):
    """The kind-specific API logic of Namespaces, whose stored `kubernetes` finalizer clients see in the spec."""

    def __init__(self) -> None:
        super().__init__(scheme.NAMESPACE)

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode a Namespace, add its name label, and move its `kubernetes` finalizer from the spec to the metadata."""
        decoded_object = super().decode(sent_object, namespace)
        if decoded_object.obj is None:
            return decoded_object
        obj = dict(with_name_label(decoded_object.obj))
        decoded_object = decoded_object._replace(obj=obj)
        if FINALIZER not in _finalizers_in_spec(obj):
            return decoded_object
        finalizers = [name for name in _finalizers_in_spec(obj) if name != FINALIZER]
        object_with_finalizer = with_finalizer(obj, FINALIZER)
        return decoded_object._replace(obj={**object_with_finalizer, "spec": {**obj["spec"], "finalizers": finalizers}})

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return the updated Namespace; its `kubernetes` finalizer is kept, because only `finalize` removes it."""
        return dict(with_finalizer(new, FINALIZER)) if FINALIZER in finalizers_of(old) else new

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Return a Namespace in a served version, with its finalizer `kubernetes` in the spec, not in the metadata."""
        served_object = super().in_version(stored_object, api_version)
        if FINALIZER not in finalizers_of(stored_object):
            return served_object
        other_finalizers = [name for name in finalizers_of(stored_object) if name != FINALIZER]
        spec = {**(stored_object.get("spec") or {}), "finalizers": [FINALIZER, *_finalizers_in_spec(stored_object)]}
        return {**with_metadata(served_object, finalizers=other_finalizers or None), "spec": spec}


class FinalizeHandler:
    """The handler of requests for `namespaces/NAME/finalize`, which can remove the `kubernetes` finalizer."""

    def __init__(self, objects: ApiObjectStore, strategy: NamespaceStrategy) -> None:
        self._objects = objects
        self._strategy = strategy

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of the subresource `finalize`."""
        return EndpointHandlers("", "v1", "Namespace", {"PUT": self._update})

    def _update(self, request: ApiRequest, _namespace: str, name: str) -> Response:
        options, sent_object = parse_write_options(request), read_body(request).value
        stored_object = self._objects.get(Key(scheme.NAMESPACE, "", name))
        if stored_object is None:
            raise not_found_error(_SERVED_KIND, name)
        if not isinstance(sent_object, Mapping) or sent_object.get("kind", "Namespace") != "Namespace":
            raise bad_request("the request body must be an object of kind Namespace")
        decoding = self._strategy.decode({**sent_object, "kind": "Namespace", "apiVersion": "v1"}, "")
        decoded_object = decoding.obj
        if decoded_object is None:
            raise bad_request(f"the request body is not a valid Namespace: {'; '.join(map(str, decoding.faults))}")
        if decoded_object["metadata"].get("name") != name:
            raise bad_request(f"metadata.name of the Namespace must be the name on the URL, {name}")
        has_finalizer = FINALIZER in finalizers_of(decoded_object)
        new = with_finalizer(stored_object, FINALIZER) if has_finalizer else without_finalizer(stored_object, FINALIZER)
        new = {**new, "spec": decoded_object.get("spec") or {}}
        version = decoded_object["metadata"].get("resourceVersion") or stored_object["metadata"]["resourceVersion"]
        write = Update(with_metadata(new, resourceVersion=version))
        finalized_object = execute_write(self._objects, write, _SERVED_KIND, name, dry_run=options.dry_run)
        return Response(200, self._strategy.render(finalized_object, "v1"))


def with_finalize(resources: Iterable[Resource], objects: ApiObjectStore) -> list[Resource]:
    """Return the resources, where Namespaces have the subresource `finalize` and no deletecollection."""
    strategy = NamespaceStrategy()
    finalize_handlers = {"finalize": FinalizeHandler(objects, strategy).handlers()}
    return [
        each._replace(
            strategy=strategy, handlers={**each.handlers, **finalize_handlers}, supports_deletecollection=False
        )
        if each.served_kind.constant == scheme.NAMESPACE
        else each
        for each in resources
    ]


def _finalizers_in_spec(obj: Obj) -> list[str]:
    finalizers: list[str] = (obj.get("spec") or {}).get("finalizers") or []
    return finalizers
