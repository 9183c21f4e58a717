"""Redaction of the objects in a state file: removes possible secrets, and replaces names by hashes on request.

`without_secrets` removes fields that no decision depends on: the environment of containers, and managedFields.
`Redaction` removes free texts, and replaces each name by its hash, so that references by name still match. Decisions
that depend on the order of names may differ.
"""

import re
from collections.abc import Mapping
from hashlib import blake2s
from typing import Any, Final

import msgspec

from batchyard.api import well_known
from batchyard.api.manifests import LAST_APPLIED
from batchyard.api.meta import Obj, annotation
from batchyard.base.instant import format_duration
from batchyard.kubelet.simulated.durations import sleep_time_of_command

_CONTAINER_FIELDS: Final = frozenset({"containers", "initContainers", "ephemeralContainers"})
_ENVIRONMENT_FIELDS: Final = frozenset({"env", "envFrom"})
#: The fields whose values are names, or contain names.
_NAME_FIELDS: Final = frozenset(
    {
        *("name", "names", "namespace", "namespaces", "generateName", "hostname", "hostnameOverride", "subdomain"),
        *("queueName", "clusterQueue", "localQueue", "queues", "workload", "cohort", "cohortName", "parentName"),
        *("flavor", "onFlavors", "lastAcceptableFlavorName", "admissionChecks", "topologyName", "priorityClassName"),
        *("nodeName", "nominatedNodeName", "providerID", "schedulerName", "runtimeClassName", "externalName"),
        *("serviceAccount", "serviceAccountName", "claimName", "storageClassName", "secretName"),
        *("resourceClaimName", "resourceClaimTemplateName", "containerName", "targetContainerName", "targetPort"),
        *("groupName", "podGroupName", "podSetGroupName", "replicatedJob", "targetReplicatedJobs"),
        *("clusters", "clusterName", "nominatedClusterNames", "universal"),
        *("pool", "placementGroup", "reservation", "resizeRequest", "provisioningRequest"),
    }
)
#: The fields that map keys to names: label values, the flavors of resources.
_NAME_MAPPINGS: Final = frozenset({"labels", "matchLabels", "nodeLabels", "nodeSelector", "flavors"})
_VALUE_FIELDS: Final = frozenset({"values", "value"})
#: The field with the cloud's parameters of a ProvisioningRequest, and the parameters that are not names.
_DETAILS_FIELD: Final = "provisioningClassDetails"
_PUBLIC_DETAILS: Final = frozenset({"AcceleratorType", "ProvisioningMode", "SelectedZone"})
#: Matches numbers, booleans and uids, which are not names.
_PUBLIC_PATTERN: Final = re.compile(r"\d*|true|false|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The fields with free texts and addresses, which are removed.
_REMOVED_FIELDS: Final = frozenset(
    {
        *("message", "description", "command", "args", "image", "images", "imageID", "volumes", "volumeMounts"),
        *("addresses", "podIP", "podIPs", "hostIP", "hostIPs", "systemUUID", "machineID", "bootID", "subjects"),
        *("podCIDR", "podCIDRs", "loadBalancerIP", "externalIPs", "loadBalancerSourceRanges"),
        *("volumesInUse", "volumesAttached", "disruptedPods", "dnsConfig", "workingDir"),
        *("nodeInfo", "containerID", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "hostAliases"),
    }
)
_SERVICE_ADDRESSES: Final = frozenset({"clusterIP", "clusterIPs"})
#: The labels whose values come from Kubernetes and the cloud provider, not from the owner of the cluster.
_PUBLIC_LABELS: Final = frozenset(
    {
        *("kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type"),
        *("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "cloud.google.com/gke-accelerator"),
        *("cloud.google.com/gke-accelerator-count", "cloud.google.com/gke-spot", "cloud.google.com/gke-provisioning"),
        *(
            "cloud.google.com/gke-tpu-accelerator",
            "cloud.google.com/gke-tpu-topology",
            "cloud.google.com/machine-family",
        ),
    }
)
_PUBLIC_NAMES: Final = frozenset({"", "default", "default-scheduler", "kube-system", "kube-public", "kube-node-lease"})
_KEPT_ANNOTATION_PREFIXES: Final = (
    "batchyard.dev/",
    "batch.kubernetes.io/",
    "kueue.x-k8s.io/",
    "provreq.kueue.x-k8s.io/",
    "jobset.sigs.k8s.io/",
)


def without_secrets(obj: Obj) -> Obj:
    """Return an object without managedFields and container environments.

    Environments are also removed from its last-applied manifest, which becomes `{}` if it is not JSON.
    """
    metadata = {field: value for field, value in obj["metadata"].items() if field != "managedFields"}
    annotations = metadata.get("annotations") or {}
    if LAST_APPLIED in annotations:
        metadata["annotations"] = {**annotations, LAST_APPLIED: _redact_applied_manifest(annotations[LAST_APPLIED])}
    redacted_object: Obj = _remove_environment({**obj, "metadata": metadata})
    return redacted_object


def _redact_applied_manifest(text: str) -> str:
    try:
        return msgspec.json.encode(_remove_environment(msgspec.json.decode(text))).decode()
    except msgspec.DecodeError:
        return "{}"


def _remove_environment(value: Any, *, is_container: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            field: _remove_environment(each, is_container=field in _CONTAINER_FIELDS)
            for field, each in value.items()
            if not (is_container and field in _ENVIRONMENT_FIELDS)
        }
    if isinstance(value, list):
        return [_remove_environment(each, is_container=is_container) for each in value]
    return value


class Redaction:
    """Replaces the names in objects by keyed hashes, which cannot be reversed by guessing names without the key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hash_name(self, name: str) -> str:
        """Return the hash of a name; the parts of `namespace/name` are hashed separately.

        Public names, numbers and uids are returned unchanged.
        """
        if name in _PUBLIC_NAMES or name.startswith("system-") or _PUBLIC_PATTERN.fullmatch(name):
            return name
        namespace, separator, local_name = name.partition("/")
        if separator:
            return f"{self.hash_name(namespace)}/{self.hash_name(local_name)}"
        return "n" + blake2s(name.encode(), key=self._key, digest_size=6).hexdigest()

    def redact_object(self, obj: Obj) -> Obj:
        """Return an object with hashed names and without free texts.

        The sleep time of a removed container command is kept as a run time annotation.
        """
        redacted_object: Obj = self._redact_value("", _annotate_sleeping_time(obj))
        return redacted_object

    def _redact_value(self, field: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            if field == "annotations":
                kept_fields = {key: text for key, text in value.items() if key.startswith(_KEPT_ANNOTATION_PREFIXES)}
                return {key: self._redact_annotation(key, text) for key, text in kept_fields.items()}
            if field in _NAME_MAPPINGS or (
                field == "selector" and all(isinstance(each, str) for each in value.values())
            ):
                return {key: text if key in _PUBLIC_LABELS else self._hash_if_text(text) for key, text in value.items()}
            if field == _DETAILS_FIELD:
                return {
                    key: text if key in _PUBLIC_DETAILS else self._hash_if_text(text) for key, text in value.items()
                }
            if field == "individual" and "roots" in value:
                return {"roots": [self.hash_name(text) for text in _full_domain_names(value)]}
            kept_fields = {key: each for key, each in value.items() if not _is_removed(key, each)}
            return {key: self._redact_field(key, each, value) for key, each in kept_fields.items()}
        if isinstance(value, list):
            return [self._redact_value(field, each) for each in value]
        return self._hash_if_text(value) if field in _NAME_FIELDS else value

    def _redact_field(self, key: str, value: Any, siblings: Mapping[str, Any]) -> Any:
        if key in _VALUE_FIELDS and siblings.get("key") not in _PUBLIC_LABELS:
            return (
                [self._hash_if_text(each) for each in value] if isinstance(value, list) else self._hash_if_text(value)
            )
        if key == "name" and _describes_resource(siblings):
            return value
        return self._redact_value(key, value)

    def _hash_if_text(self, value: Any) -> Any:
        return self.hash_name(value) if isinstance(value, str) else value

    def _redact_annotation(self, key: str, text: str) -> str:
        is_public_annotation = key.startswith("batchyard.dev/") or "topology" in key  #  the value is a label key
        return text if is_public_annotation else self.hash_name(text)


#: A mapping with one of these fields describes a resource, so that its `name` is a resource name.
_RESOURCE_SIBLINGS: Final = frozenset({"nominalQuota", "borrowingLimit", "lendingLimit", "total", "borrowed"})


def _describes_resource(siblings: Mapping[str, Any]) -> bool:
    return any(each in siblings for each in _RESOURCE_SIBLINGS)


def _is_removed(field: str, value: Any) -> bool:
    return field in _REMOVED_FIELDS or (field in _SERVICE_ADDRESSES and value not in ("None", ["None"]))


def _full_domain_names(level: Mapping[str, Any]) -> list[str]:
    return [f"{level.get('prefix') or ''}{root}{level.get('suffix') or ''}" for root in level["roots"]]


def _annotate_sleeping_time(obj: Obj) -> Obj:
    """Return the object with its container's sleep time as run time annotation, because the command is removed."""
    pod_spec = _pod_spec(obj)
    if pod_spec is None or annotation(obj, well_known.RUNTIME) is not None:
        return obj
    first_container: Mapping[str, Any] = (pod_spec.get("containers") or [{}])[0]
    sleep_time = sleep_time_of_command(
        first_container.get("image") or "",
        tuple(first_container.get("command") or ()),
        tuple(first_container.get("args") or ()),
    )
    if sleep_time is None:
        return obj
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: format_duration(sleep_time)}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _pod_spec(obj: Obj) -> Mapping[str, Any] | None:
    spec: Mapping[str, Any] = obj.get("spec") or {}
    match obj["kind"]:
        case "Pod":
            return spec
        case "Job":
            template: Mapping[str, Any] = spec["template"]["spec"]
            return template
        case "Workload":
            first_pod_spec: Mapping[str, Any] = spec["podSets"][0]["template"]["spec"]
            return first_pod_spec
        case _:
            return None
