"""Rockets: a kind that a user defines, and an API that serves it."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.custom_kinds import DEFINITION
from batchyard.api.meta import Key
from batchyard.housekeeping.controllers import CustomResourceDefinitions
from unit.apiserver.api import Api

NAME = "rockets.space.example.com"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROCKETS = "/apis/space.example.com/v1/namespaces/default/rockets"


def schema_of(**spec: Any) -> dict[str, Any]:
    """The schema of objects whose spec has these fields."""
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}, "status": status}}


def version_of(schema: Mapping[str, Any], name: str = "v1", **more: Any) -> dict[str, Any]:
    """A version that is served, and stored if it is v1."""
    return {"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}, **more}


def definition(*versions: Mapping[str, Any], **names: Any) -> dict[str, Any]:
    """A definition of rockets with these versions."""
    spec: dict[str, Any] = {"group": "space.example.com", "scope": "Namespaced"}
    spec |= {"names": {"plural": "rockets", "kind": "Rocket", **names}, "versions": list(versions)}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": {"name": f"{names.get('plural', 'rockets')}.space.example.com"}, "spec": spec}


def rocket(name: str = "ariane", version: str = "v1", **spec: Any) -> dict[str, Any]:
    """A rocket."""
    return {"apiVersion": f"space.example.com/{version}", "kind": "Rocket", "metadata": {"name": name}, "spec": spec}


class DefinitionApi(Api):
    """An API with the controller of definitions."""

    def define(self, wanted: Mapping[str, Any]) -> Any:
        """Create a definition and reconcile it; the stored definition."""
        self.post(DEFINITIONS, wanted)
        return self.reconcile_definition(wanted["metadata"]["name"])

    def reconcile_definition(self, name: str = NAME) -> Any:
        """Reconcile a definition until nothing changes; the stored definition, or None if it is gone."""
        key, controller = Key(DEFINITION, "", name), CustomResourceDefinitions()
        while outcome := controller.reconcile(key, self.stored.client, self.stored.kernel.now()).writes:
            for write in outcome:
                assert self.stored.attempt(write).error is None
        return self.stored.get(key)

    def faults(self, wanted: Mapping[str, Any], path: str = ROCKETS) -> list[str]:
        """Create an invalid object; the reported faults with their fields."""
        response = self.ask("POST", path, wanted)
        assert response.code == 422, response
        return [f"{cause['field']}: {cause['message']}" for cause in response.body["details"]["causes"]]


def space(schema: Mapping[str, Any], **more: Any) -> DefinitionApi:
    """An API that serves rockets of a schema."""
    created = DefinitionApi()
    created.define(definition(version_of(schema, **more)))
    return created
