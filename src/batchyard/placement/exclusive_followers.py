"""Followers that are still to come: the pods of an exclusively placed Job that wait for their leader to have a node.

They do not exist while their leader waits, and for a moment after. Room is held for stand-ins of theirs from when the
leader's place is decided until they are there. After a restart that is decided anew.
"""

from collections.abc import Mapping, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of, group_kind
from batchyard.api.views.ownership import owner_key, pods_at_once
from batchyard.api.views.pod_lifecycle import is_terminal, is_terminating
from batchyard.api.views.pods import PodView
from batchyard.interfaces.client import Reader
from batchyard.placement.cluster_snapshot import Nodes
from batchyard.placement.gang import Claim
from batchyard.placement.index import pod_key


def missing_followers(leader: Obj, reader: Reader) -> int:
    """How many pods of a leader's Job are still to come."""
    owner = controller_of(leader)
    job = None if owner is None else reader.get(owner_key(owner, leader["metadata"].get("namespace", "")))
    if owner is None or job is None or job["metadata"]["uid"] != owner["uid"]:
        return 0
    wanted, completions = pods_at_once(job["spec"]), job["spec"].get("completions")
    if completions is not None:
        wanted = min(wanted, completions - (job.get("status") or {}).get("succeeded", 0))
    owned = reader.owned_by(owner["uid"], job["metadata"].get("namespace", ""))
    pods = [obj for obj in owned if group_kind(obj) == scheme.POD]
    return max(0, wanted - sum(map(_is_living, pods)))


class HeldRoom:
    """The room that is held for stand-ins."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        #: By leader.
        self._stand_ins: dict[Key, Sequence[PodView]] = {}

    def hold(self, claims: Sequence[Claim], seats: Mapping[str, str]) -> None:
        """Hold room for all who will follow the leaders of claims; without seats, for nobody."""
        for claim in claims:
            leader = pod_key(claim.leader)
            self._keep(leader, 0)
            for pod in claim.pods[1:] if seats else ():
                self._nodes.nominate(pod, seats[pod.uid])
                self._stand_ins[leader] = claim.pods[1:]

    def refresh(self, reader: Reader) -> None:
        """Those who have come need no stand-ins, nor does a leader who is gone."""
        for leader in list(self._stand_ins):
            obj = reader.get(leader)
            self._keep(leader, 0 if obj is None or not _is_living(obj) else missing_followers(obj, reader))

    def _keep(self, leader: Key, count: int) -> None:
        """Hold room for so many stand-ins of a leader only."""
        stand_ins = self._stand_ins.pop(leader, ())
        for pod in stand_ins[count:]:
            self._nodes.withdraw(pod.uid)
        if stand_ins and count:
            self._stand_ins[leader] = stand_ins[:count]


def _is_living(pod: Obj) -> bool:
    return not (is_terminal(pod) or is_terminating(pod))
