"""The API server of Kubernetes stores the same defaults of minimal objects as batchyard."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from e2e_kubernetes.installed_operators import InstalledOperators
from minimal_objects import MINIMAL_OBJECTS

#: Fields that the server allocates, or that a controller or an admission plugin sets.
ALLOCATED = (
    *("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "nodePort", "selector", "priority"),
    *("preemptionPolicy", "tolerations", "serviceAccount", "serviceAccountName", "volumes", "volumeMounts"),
    *("conditions", "qosClass", "metadata", "lastPhaseTransitionTime", "observedGeneration"),
)


@pytest.mark.parametrize(("kind", "sent", "stored"), MINIMAL_OBJECTS)
def test_kubernetes_stores_minimal_object_with_same_defaults(
    cluster: InstalledOperators, kind: str, sent: str, stored: str
) -> None:
    if kind == "v1 Pod":
        cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    api_version, _, name = kind.rpartition(" ")
    head = {"apiVersion": api_version, "kind": name, "metadata": {"generateName": "a-", "namespace": "default"}}
    created = json.loads(
        cluster.kubectl("create", "-f", "-", "-o", "json", sent=json.dumps({**head, **yaml.safe_load(sent)}))
    )
    # A LimitRange, for example, would change the pods of later tests.
    cluster.kubectl("delete", "--wait=false", "-f", "-", sent=json.dumps(created))
    reported = {field: value for field, value in created.items() if field not in head and value}
    kept = {field: value for field, value in yaml.safe_load(stored).items() if value}
    if name == "PriorityClass":
        assert reported.pop("preemptionPolicy") == kept.pop("preemptionPolicy")
    assert without_allocated(reported) == without_allocated(kept)


def without_allocated(value: Any) -> Any:
    """A value without the allocated fields."""
    if isinstance(value, list):
        return [without_allocated(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {name: without_allocated(each) for name, each in value.items() if name not in ALLOCATED}
