"""The cluster as it will be: current nodes, nodes being created, and capacity booked for ProvisioningRequests."""

from dataclasses import replace

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.index import FailedMachines, ScalingIndex
from batchyard.autoscaler.machines import MachineRecord
from batchyard.autoscaler.node_groups import ClusterLimits, NodeGroup
from batchyard.autoscaler.provisioning_request_pods import QUEUED_CLASS, ProvisioningRequestState, pods_of, state_of
from batchyard.autoscaler.scale_up import LoopContext, PodPlacements, ScaleUp
from batchyard.interfaces.client import Reader


class UpcomingCluster:
    """The cluster with the nodes being created, on which a scale-up is simulated; use only within `nodes.what_if()`."""

    def __init__(
        self, index: ScalingIndex, reader: Reader, loop_context: LoopContext, failures: FailedMachines
    ) -> None:
        self._index = index
        self._reader = reader
        sizes = {
            name: size - failures.failed_machine_count_in_size(name) for name, size in index.machines.sizes.items()
        }
        self.fleet = NodeGroupsState(index.all_groups(), sizes, index.machines.terminating_counts, failures.backoffs)
        cluster, settings = loop_context.cluster, loop_context.settings
        self.limits = ClusterLimits(settings.limits, self.fleet.usage())
        provisioner = NodeAutoProvisioner(cluster, settings.limits, index.pools) if settings.makes_pools else None
        self.scale_up = ScaleUp(index.nodes, self.fleet, self.limits, loop_context, provisioner)
        #: Names of upcoming nodes, and of nodes with booked capacity.
        self.upcoming_nodes: dict[str, None] = {}
        self.booked_nodes: dict[str, None] = {}
        self._failed_machines = failures.machines

    def add_upcoming_capacity(self) -> None:
        """Add nodes being created to the node snapshot, and the pods for which ProvisioningRequests book capacity."""
        for machine in self._index.machines.upcoming_machines.values():
            group = self.fleet.groups.get(machine.group)
            if group is not None and machine.name not in self._failed_machines:
                self._index.nodes.set_node(upcoming_node(machine, group))
                self.upcoming_nodes[machine.name] = None
        for key, request in self._index.requests.items():
            if has_booked_capacity(request):
                self._book_capacity(key, request)

    def _book_capacity(self, key: Key, request: Obj) -> None:
        """Reserve free capacity for those pods of a ProvisioningRequest for which no bound pod consumes it yet."""
        pods = requested_pods(request, self._reader)
        if pods is None:
            return
        consumer_count = len(self._index.consumers.get(key, ()))
        pod_placements = PodPlacements(self._index.nodes)
        pod_placements.place_all(pods[consumer_count:])
        self.booked_nodes.update(dict.fromkeys(pod_placements.node_by_pod.values()))


def upcoming_node(machine: MachineRecord, group: NodeGroup) -> NodeView:
    """Return the node that a machine of a node group will become."""
    node_view = group.new_node(machine.name)
    if not machine.resize_request:
        return node_view
    return replace(node_view, labels={**node_view.labels, well_known.NODE_PROVISIONING_REQUEST: machine.resize_request})


def has_booked_capacity(request: Obj) -> bool:
    """Return whether free capacity is booked for a ProvisioningRequest; GKE's queued class gets new nodes instead."""
    is_queued = request["spec"]["provisioningClassName"] == QUEUED_CLASS
    return not is_queued and state_of(request) is ProvisioningRequestState.PROVISIONED


def requested_pods(request: Obj, reader: Reader) -> list[PodView] | None:
    """Return the pods for which a ProvisioningRequest asks; None if a pod template is missing."""
    keys = template_keys(request)
    templates = [template for template in map(reader.get, keys) if template is not None]
    return pods_of(request, templates) if len(templates) == len(keys) else None


def template_keys(request: Obj) -> list[Key]:
    """Return the keys of the pod templates of a ProvisioningRequest, in the order of its pod sets."""
    namespace = request["metadata"]["namespace"]
    names = [pod_set["podTemplateRef"]["name"] for pod_set in request["spec"]["podSets"]]
    return [Key(scheme.POD_TEMPLATE, namespace, name) for name in names]
