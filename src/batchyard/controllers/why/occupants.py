"""Who is on the nodes that pods without a node could use."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, label
from batchyard.api.quantity import format_amount
from batchyard.api.views.pods import PODS, PodView, pod_view
from batchyard.controllers.why.document import Asker, Part, slim
from batchyard.controllers.why.subjects import workload_of
from batchyard.core.lifecycle.pod import is_terminal
from batchyard.core.snapshot import Snapshot
from batchyard.ports.client import Reader


class Occupant(NamedTuple):
    """A Workload, or what belongs to none, with what its pods take of those nodes."""

    key: str
    queue: str
    priority: int
    amounts: Mapping[str, int]
    nodes: Sequence[str]
    #: Its pods there, by uid.
    pods: Sequence[str] = ()
    flavor: str = ""

    def document(self, asker: Asker) -> Part:
        """As the document tells of who holds something."""
        holds = [{"flavor": self.flavor, "resource": r, "amount": format_amount(r, n)} for r, n in self.amounts.items()]
        name = asker.name_of(self.key) if self.key else "pods of no Workload"
        told = slim(workload=name, clusterQueue=self.queue, nodes=list(self.nodes))
        return {**told, "priority": self.priority, "holds": holds, "borrows": False}


def selected_nodes(pod: PodView, reader: Reader) -> list[str]:
    """The nodes with the labels that a pod selects."""
    selector = dict(pod.node_selector).items()
    nodes = reader.list(scheme.NODE)
    return [each["metadata"]["name"] for each in nodes if selector <= (each["metadata"].get("labels") or {}).items()]


def occupants_of(workload: Obj, unplaced: Sequence[Obj], snapshot: Snapshot, reader: Reader) -> list[Occupant]:
    """Who is on the nodes with the labels that these pods select; most of the scarcest resource first."""
    asked = pod_view(unplaced[0])
    nodes = dict.fromkeys(selected_nodes(asked, reader))
    wanted = [resource for resource, _ in asked.requests if resource != PODS]
    scarce = next((each for each in wanted if "/" in each), wanted[0] if wanted else PODS)
    found: dict[str, Occupant] = {}
    for pod in reader.list(scheme.POD):
        view = pod_view(pod)
        if view.node_name in nodes and not is_terminal(pod) and dict(view.requests).get(scarce):
            _count(found, pod, view, (wanted, reader))
    own = f"{workload['metadata'].get('namespace', '')}/{workload['metadata']['name']}"
    others = [each for key, each in found.items() if key != own]
    held = [(snapshot.holder(each.key), each) for each in others]
    told = [
        each if holder is None else each._replace(queue=holder.queue.name, priority=holder.priority)
        for holder, each in held
    ]
    return sorted(told, key=lambda each: (-each.amounts.get(scarce, 0), each.key))


def _count(found: dict[str, Occupant], pod: Obj, view: PodView, asked: tuple[Sequence[str], Reader]) -> None:
    wanted, reader = asked
    name = label(pod, well_known.WORKLOAD)
    if name is None:
        workload = workload_of(pod, reader).workload
        name = workload["metadata"]["name"] if workload is not None else ""
    key = f"{view.namespace}/{name}" if name else ""
    known = found.get(key) or Occupant(key, "", view.priority, {}, ())
    amounts = dict(known.amounts)
    for resource, amount in view.requests:
        if resource in wanted:
            amounts[resource] = amounts.get(resource, 0) + amount
    nodes = list(dict.fromkeys([*known.nodes, view.node_name]))
    found[key] = known._replace(amounts=amounts, nodes=nodes, pods=[*known.pods, view.uid])
