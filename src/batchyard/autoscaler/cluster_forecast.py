"""The upcoming cluster: with nodes that are being created, and capacity booked for ProvisioningRequests."""

from dataclasses import replace

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.index import Failures, ScalingIndex
from batchyard.autoscaler.machines import MachineRecord
from batchyard.autoscaler.node_groups import ClusterLimits, NodeGroup
from batchyard.autoscaler.provisioning_request_pods import QUEUED_CLASS, ProvisioningRequestState, pods_of, state_of
from batchyard.autoscaler.scale_up import LoopContext, PodPlacements, ScaleUp
from batchyard.interfaces.client import Reader


class UpcomingCluster:
    """The upcoming cluster and its scale-up, simulated on the nodes themselves: use only within `nodes.what_if()`."""

    def __init__(self, index: ScalingIndex, reader: Reader, situation: LoopContext, failures: Failures) -> None:
        self._index = index
        self._reader = reader
        sizes = {name: size - failures.count_of(name) for name, size in index.machines.sizes.items()}
        self.fleet = NodeGroupsState(index.all_groups(), sizes, index.machines.leaving, failures.backoffs)
        cluster, settings = situation.cluster, situation.settings
        self.limits = ClusterLimits(settings.limits, self.fleet.used())
        maker = NodeAutoProvisioner(cluster, settings.limits, index.pools) if settings.makes_pools else None
        self.scale_up = ScaleUp(index.nodes, self.fleet, self.limits, situation, maker)
        #: Names of upcoming nodes, and of nodes with booked capacity.
        self.upcoming: dict[str, None] = {}
        self.booked: dict[str, None] = {}
        self._given_up = failures.machines

    def prepare(self) -> None:
        """Add the upcoming nodes, and the pods of requests with booked capacity."""
        for machine in self._index.machines.coming.values():
            group = self.fleet.groups.get(machine.group)
            if group is not None and machine.name not in self._given_up:
                self._index.nodes.set_node(coming_node(machine, group))
                self.upcoming[machine.name] = None
        for key, request in self._index.requests.items():
            if is_booked(request):
                self._book(key, request)

    def _book(self, key: Key, request: Obj) -> None:
        """Book capacity for the pods of a request that do not exist yet."""
        pods = requested_pods(request, self._reader)
        if pods is None:
            return
        come = len(self._index.consumers.get(key, ()))
        placings = PodPlacements(self._index.nodes)
        placings.put(pods[come:])
        self.booked.update(dict.fromkeys(placings.places.values()))


def coming_node(machine: MachineRecord, group: NodeGroup) -> NodeView:
    """Return the node that a machine will become."""
    view = group.node(machine.name)
    if not machine.resize_request:
        return view
    return replace(view, labels={**view.labels, well_known.NODE_PROVISIONING_REQUEST: machine.resize_request})


def is_booked(request: Obj) -> bool:
    """Whether capacity is booked for a request. Queued requests have their own nodes."""
    return (
        request["spec"]["provisioningClassName"] != QUEUED_CLASS
        and state_of(request) is ProvisioningRequestState.PROVISIONED
    )


def requested_pods(request: Obj, reader: Reader) -> list[PodView] | None:
    """Return the pods of a request; None if templates are missing."""
    templates = [reader.get(key) for key in template_keys(request)]
    found = [template for template in templates if template is not None]
    return pods_of(request, found) if len(found) == len(templates) else None


def template_keys(request: Obj) -> list[Key]:
    """Return the template keys of a request, in the order of its pod sets."""
    namespace = request["metadata"]["namespace"]
    names = [pod_set["podTemplateRef"]["name"] for pod_set in request["spec"]["podSets"]]
    return [Key(scheme.POD_TEMPLATE, namespace, name) for name in names]
