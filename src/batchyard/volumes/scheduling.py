"""Which nodes suit the claims of a pod: binding mode, node affinity of volumes, and the access mode ReadWriteOncePod.

Messages are kube-scheduler's. Sources: its plugins volumerestrictions and volumebinding (binder.go).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.views.pods import PodView
from batchyard.api.views.volumes import requested_storage, storage_class_name
from batchyard.interfaces.client import ObjectReader
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_filters import FilterFailure
from batchyard.placement.node_info import NodeInfo
from batchyard.volumes import binding

_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
_CLAIM_IN_USE: Final = FilterFailure(
    ("node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",),
    is_resolvable=True,
)
_AFFINITY_REASON: Final = "node(s) didn't match PersistentVolume's node affinity"
_NO_VOLUME_REASON: Final = "node(s) didn't find available persistent volumes to bind"
_MISSING_VOLUME_REASON: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


class ClaimFilter:
    """Node filter for the claims of one pod: the volumes of its bound claims, and the claims that wait for a node."""

    def __init__(self, pod: PodView, nodes: ClusterSnapshot, reader: ObjectReader) -> None:
        self._pod = pod
        self._nodes = nodes
        self._reader = reader
        #: Why no node accepts the pod; None if this depends on the node.
        self.pod_failure: FilterFailure | None = None
        #: The volumes of bound claims; None for a volume that does not exist.
        self._bound_volumes: list[meta.Obj | None] = []
        self._waiting_claims: list[meta.Obj] = []
        self._is_claim_in_use = False
        for name in pod.volume_claims:
            claim = reader.get(meta.Key(scheme.PERSISTENT_VOLUME_CLAIM, pod.namespace, name))
            problem = _find_problem(claim, name)
            if problem or claim is None:
                self._reject_pod(problem)
                return
            self._add_claim(claim)
        self._waiting_claims.sort(key=requested_storage)
        self._volumes = self._available_volumes()

    def _reject_pod(self, reason: str) -> None:
        self.pod_failure = FilterFailure((reason,), is_resolvable=False, concerns_pod=True)

    def _add_claim(self, claim: meta.Obj) -> None:
        users = self._nodes.claim_users.get((self._pod.namespace, claim["metadata"]["name"]), {})
        is_exclusive = "ReadWriteOncePod" in (claim["spec"].get("accessModes") or ())
        self._is_claim_in_use |= is_exclusive and any(uid != self._pod.uid for uid in users)
        if binding.is_fully_bound(claim):
            self._bound_volumes.append(self._reader.get(binding.volume_key(claim)))
        elif binding.waits_for_consumer(claim, self._reader):
            self._waiting_claims.append(claim)
        else:
            self._reject_pod("pod has unbound immediate PersistentVolumeClaims")

    def _available_volumes(self) -> Sequence[meta.Obj]:
        """Return the volumes that may be bound to the waiting claims, without those that other pods will get."""
        if not self._waiting_claims:
            return ()
        classes = {storage_class_name(claim) for claim in self._waiting_claims}
        volumes = [each for each in self._reader.list(scheme.PERSISTENT_VOLUME) if storage_class_name(each) in classes]
        return self._without_expected_bindings([each for each in volumes if binding.phase_of(each) == "Available"])

    def _without_expected_bindings(self, volumes: Sequence[meta.Obj]) -> Sequence[meta.Obj]:
        """Remove the volumes that unbound claims of pods on nodes will bind."""
        for namespace, name in self._nodes.claim_users if volumes else ():
            claim = self._reader.get(meta.Key(scheme.PERSISTENT_VOLUME_CLAIM, namespace, name))
            node = self._nodes.get(self._node_of_users((namespace, name)))
            is_own = namespace == self._pod.namespace and name in self._pod.volume_claims
            if claim is None or node is None or is_own or binding.is_fully_bound(claim):
                continue
            volume = binding.find_volume(claim, volumes, node.view)
            volumes = [each for each in volumes if each is not volume]
        return volumes

    def _node_of_users(self, claim: tuple[str, str]) -> str:
        """Return the node of the first other pod that uses a claim; '' if there is none."""
        uids = [uid for uid in self._nodes.claim_users.get(claim, ()) if uid != self._pod.uid]
        return self._nodes.node_name_of(uids[0]) if uids else ""

    def find_obstacle(self, node: NodeInfo) -> FilterFailure | None:
        """Return why a node does not suit the volumes of the pod; None if it does."""
        if self.pod_failure is not None:
            return self.pod_failure
        if self._is_claim_in_use:
            return _CLAIM_IN_USE
        reasons = []
        if not all(binding.suits_node(volume, node.view) for volume in self._bound_volumes if volume is not None):
            reasons.append(_AFFINITY_REASON)
        if not self._can_bind_on(node):
            reasons.append(_NO_VOLUME_REASON)
        if None in self._bound_volumes:
            reasons.append(_MISSING_VOLUME_REASON)
        return FilterFailure(tuple(reasons), is_resolvable=False) if reasons else None

    def _can_bind_on(self, node: NodeInfo) -> bool:
        """Return whether each waiting claim can get a volume on a node: an available one or a new one."""
        volumes = self._volumes
        for claim in self._waiting_claims:
            metadata = claim["metadata"]
            annotated_node = meta.annotation(claim, binding.SELECTED_NODE) or ""
            selected_node = annotated_node or self._node_of_users((metadata["namespace"], metadata["name"]))
            if selected_node not in {"", node.name}:
                return False
            volume = None if annotated_node else binding.find_volume(claim, volumes, node.view)
            if volume is None and not self._can_provision(claim, node):
                return False
            volumes = [each for each in volumes if each is not volume]
        return True

    def _can_provision(self, claim: meta.Obj, node: NodeInfo) -> bool:
        storage_class = binding.storage_class_of(claim, self._reader)
        if storage_class is None or storage_class["provisioner"] == _NO_PROVISIONER:
            return False
        terms: Sequence[Mapping[str, Any]] = storage_class.get("allowedTopologies") or ()
        labels = node.view.labels
        return not terms or any(_matches_topology(term.get("matchLabelExpressions") or (), labels) for term in terms)


def _find_problem(claim: meta.Obj | None, name: str) -> str:
    """Return why no pod can be scheduled with a claim; '' if the claim permits it."""
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if binding.phase_of(claim) == binding.LOST:
        volume_name = claim["spec"].get("volumeName") or ""
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume_name}"'
    return f'persistentvolumeclaim "{name}" is being deleted' if "deletionTimestamp" in claim["metadata"] else ""


def _matches_topology(expressions: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    """Return whether a topology term selects a node with these labels; a term without expressions selects none."""
    return bool(expressions) and all(labels.get(each["key"]) in each["values"] for each in expressions)
