"""What an AdmissionCheck says of its ProvisioningRequests: the ProvisioningRequestConfig it names.

Source: Kueue's apis/kueue/v1beta2 (its defaults included) and pkg/util/admissioncheck.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Duration
from batchyard.ports.client import Reader

_GROUP: Final = "kueue.x-k8s.io"
_KIND: Final = "ProvisioningRequestConfig"
_NOTHING: Final[Mapping[str, Any]] = {}


class NodeSelectorUpdate(NamedTuple):
    """A key of the node selector of pods, and the detail of the request that gives its value."""

    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class Config:
    """A ProvisioningRequestConfig."""

    class_name: str
    parameters: Mapping[str, str]
    #: Pod sets that ask for none of these need no capacity; empty: all need it.
    managed_resources: tuple[str, ...]
    retries_max: int
    backoff_base: Duration
    backoff_max: Duration
    #: Which pod sets share a template: IdenticalPodTemplates, IdenticalWorkloadSchedulingRequirements, '' for none.
    merge_policy: str
    node_selector: tuple[NodeSelectorUpdate, ...]


class Missing(NamedTuple):
    """Why there is no config, in Kueue's words."""

    message: str


def find_config(check: Obj, reader: Reader) -> Config | Missing:
    """The config that an AdmissionCheck names."""
    name = config_name(check)
    if isinstance(name, Missing):
        return name
    found = reader.get(Key(scheme.PROVISIONING_REQUEST_CONFIG, "", name))
    if found is None:
        return Missing(f'{scheme.PROVISIONING_REQUEST_CONFIG} "{name}" not found')
    return _config(found["spec"])


def config_name(check: Obj) -> str | Missing:
    """The name of the config an AdmissionCheck is to have."""
    reference = check["spec"].get("parameters")
    if reference is None:
        return Missing("missing parameters reference")
    name, group, kind = (reference.get(field) or "" for field in ("name", "apiGroup", "kind"))
    if not name:
        return Missing("empty name: bad parameters reference")
    if group != _GROUP:
        return Missing(f'wrong group "{group}", expecting "{_GROUP}": bad parameters reference')
    if kind != _KIND:
        return Missing(f'wrong kind "{kind}", expecting "{_KIND}": bad parameters reference')
    return str(name)


def _config(spec: Mapping[str, Any]) -> Config:
    retry = spec.get("retryStrategy") or _NOTHING
    updates = (spec.get("podSetUpdates") or _NOTHING).get("nodeSelector") or ()
    return Config(
        class_name=spec.get("provisioningClassName", ""),
        parameters=spec.get("parameters") or _NOTHING,
        managed_resources=tuple(spec.get("managedResources") or ()),
        retries_max=retry.get("backoffLimitCount", 3),
        backoff_base=retry.get("backoffBaseSeconds", 60) * SECOND,
        backoff_max=retry.get("backoffMaxSeconds", 1800) * SECOND,
        merge_policy=spec.get("podSetMergePolicy") or "",
        node_selector=tuple(NodeSelectorUpdate(u["key"], u["valueFromProvisioningClassDetail"]) for u in updates),
    )
