"""Redaction of objects in a snapshot: removes possible secrets, and replaces names by hashes on request.

`bare` removes fields that no decision depends on: the environment of containers, and managedFields. `Redaction` also
replaces names by hashes, the same for the same name, and removes free texts. References by name stay intact. Decisions
that depend on the order of names may differ.
"""

import re
from collections.abc import Mapping
from hashlib import blake2s
from typing import Any, Final

import msgspec

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation
from batchyard.base.instant import duration_text
from batchyard.kubelet.simulated.durations import sleeping_time
from batchyard.sim.state_document import LAST_APPLIED

_CONTAINERS: Final = frozenset({"containers", "initContainers", "ephemeralContainers"})
_ENVIRONMENT: Final = frozenset({"env", "envFrom"})
#: Fields whose texts are names, or contain names.
_NAMES: Final = frozenset(
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
#: Mappings to names: label values, the flavors of resources.
_NAMED: Final = frozenset({"labels", "matchLabels", "nodeLabels", "nodeSelector", "flavors"})
_VALUES: Final = frozenset({"values", "value"})
#: The details of a ProvisioningRequest, by keys of the cloud; the values of these keys are not names.
_DETAILS: Final = "provisioningClassDetails"
_PLAIN_DETAILS: Final = frozenset({"AcceleratorType", "ProvisioningMode", "SelectedZone"})
#: Numbers, booleans and uids, which are not names.
_PLAIN: Final = re.compile(r"\d*|true|false|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Free texts and addresses.
_LEFT_OUT: Final = frozenset(
    {
        *("message", "description", "command", "args", "image", "images", "imageID", "volumes", "volumeMounts"),
        *("addresses", "podIP", "podIPs", "hostIP", "hostIPs", "systemUUID", "machineID", "bootID", "subjects"),
        *("podCIDR", "podCIDRs", "loadBalancerIP", "externalIPs", "loadBalancerSourceRanges"),
        *("volumesInUse", "volumesAttached", "disruptedPods", "dnsConfig", "workingDir"),
        *("nodeInfo", "containerID", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "hostAliases"),
    }
)
_SERVICE_ADDRESSES: Final = frozenset({"clusterIP", "clusterIPs"})
#: Labels whose values come from Kubernetes and the cloud provider, not from the cluster's owner.
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
_PUBLIC: Final = frozenset({"", "default", "default-scheduler", "kube-system", "kube-public", "kube-node-lease"})
_OURS: Final = (
    "batchyard.dev/",
    "batch.kubernetes.io/",
    "kueue.x-k8s.io/",
    "provreq.kueue.x-k8s.io/",
    "jobset.sigs.k8s.io/",
)


def without_secrets(obj: Obj) -> Obj:
    """Return an object without fields that could be secret and that no decision depends on."""
    metadata = {field: value for field, value in obj["metadata"].items() if field != "managedFields"}
    annotations = metadata.get("annotations") or {}
    if LAST_APPLIED in annotations:
        metadata["annotations"] = {**annotations, LAST_APPLIED: _applied(annotations[LAST_APPLIED])}
    found: Obj = _without_environment({**obj, "metadata": metadata})
    return found


def _applied(text: str) -> str:
    try:
        return msgspec.json.encode(_without_environment(msgspec.json.decode(text))).decode()
    except msgspec.DecodeError:
        return "{}"


def _without_environment(value: Any, *, is_container: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {
            field: _without_environment(each, is_container=field in _CONTAINERS)
            for field, each in value.items()
            if not (is_container and field in _ENVIRONMENT)
        }
    if isinstance(value, list):
        return [_without_environment(each, is_container=is_container) for each in value]
    return value


class Redaction:
    """Replaces names by keyed hashes; without the key, names cannot be found by trying."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hashed(self, name: str) -> str:
        """Return the hash of a name; public names, numbers and uids stay as they are."""
        if name in _PUBLIC or name.startswith("system-") or _PLAIN.fullmatch(name):
            return name
        namespace, slash, rest = name.partition("/")
        if slash:
            return f"{self.hashed(namespace)}/{self.hashed(rest)}"
        return "n" + blake2s(name.encode(), key=self._key, digest_size=6).hexdigest()

    def redacted(self, obj: Obj) -> Obj:
        """Return an object without names and free texts; its run time is kept."""
        found: Obj = self._value("", _with_runtime(obj))
        return found

    def _value(self, field: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            if field == "annotations":
                return {key: self._annotation(key, text) for key, text in value.items() if key.startswith(_OURS)}
            if field in _NAMED or (field == "selector" and all(isinstance(each, str) for each in value.values())):
                return {key: text if key in _PUBLIC_LABELS else self._named(text) for key, text in value.items()}
            if field == _DETAILS:
                return {key: text if key in _PLAIN_DETAILS else self._named(text) for key, text in value.items()}
            if field == "individual" and "roots" in value:
                return {"roots": [self.hashed(text) for text in _whole(value)]}
            return {key: self._field(key, each, value) for key, each in value.items() if not _is_left_out(key, each)}
        if isinstance(value, list):
            return [self._value(field, each) for each in value]
        return self._named(value) if field in _NAMES else value

    def _field(self, key: str, value: Any, within: Mapping[str, Any]) -> Any:
        """Return a redacted field; some fields are names only in combination with others."""
        if key in _VALUES and within.get("key") not in _PUBLIC_LABELS:
            return [self._named(each) for each in value] if isinstance(value, list) else self._named(value)
        if key == "name" and _is_of_resource(within):
            return value
        return self._value(key, value)

    def _named(self, value: Any) -> Any:
        return self.hashed(value) if isinstance(value, str) else value

    def _annotation(self, key: str, text: str) -> str:
        is_word = key.startswith("batchyard.dev/") or "topology" in key  #  the key of a label
        return text if is_word else self.hashed(text)


#: A name beside one of these fields is that of a resource.
_OF_RESOURCES: Final = frozenset({"nominalQuota", "borrowingLimit", "lendingLimit", "total", "borrowed"})


def _is_of_resource(within: Mapping[str, Any]) -> bool:
    return any(each in within for each in _OF_RESOURCES)


def _is_left_out(field: str, value: Any) -> bool:
    """Whether a field is left out; the address of a Service stays if it is `None`."""
    return field in _LEFT_OUT or (field in _SERVICE_ADDRESSES and value not in ("None", ["None"]))


def _whole(values: Mapping[str, Any]) -> list[str]:
    """Return the full names of the domains of a topology level, whose common prefix and suffix are stored once."""
    return [f"{values.get('prefix') or ''}{root}{values.get('suffix') or ''}" for root in values["roots"]]


def _with_runtime(obj: Obj) -> Obj:
    """Return the object with the sleeping time of its containers as an annotation, because commands are left out."""
    pod_spec = _pod_spec(obj)
    if pod_spec is None or annotation(obj, well_known.RUNTIME) is not None:
        return obj
    first: Mapping[str, Any] = (pod_spec.get("containers") or [{}])[0]
    time = sleeping_time(first.get("image") or "", tuple(first.get("command") or ()), tuple(first.get("args") or ()))
    if time is None:
        return obj
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: duration_text(time)}
    return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}


def _pod_spec(obj: Obj) -> Mapping[str, Any] | None:
    """Return the pod spec of a kind that has a single pod template."""
    spec: Mapping[str, Any] = obj.get("spec") or {}
    match obj["kind"]:
        case "Pod":
            return spec
        case "Job":
            template: Mapping[str, Any] = spec["template"]["spec"]
            return template
        case "Workload":
            first: Mapping[str, Any] = spec["podSets"][0]["template"]["spec"]
            return first
        case _:
            return None
