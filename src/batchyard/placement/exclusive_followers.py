"""Followers of an exclusively placed Job: pods that are created only after their leader has a node.

Room is reserved for placeholders of them from the leader's placement until they exist. After a restart the reservation
is computed again.
"""

from collections.abc import Mapping, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of, group_kind
from batchyard.api.views.ownership import owner_key, pods_at_once
from batchyard.api.views.pod_lifecycle import is_terminal, is_terminating
from batchyard.api.views.pods import PodView
from batchyard.interfaces.client import Reader
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import PlacementClaim
from batchyard.placement.index import pod_key


def missing_followers(leader: Obj, reader: Reader) -> int:
    """Return the number of pods of a leader's Job that do not exist yet."""
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


class FollowerReservations:
    """Nominations of placeholder pods, by leader."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: Placeholders by leader.
        self._stand_ins: dict[Key, Sequence[PodView]] = {}

    def hold(self, claims: Sequence[PlacementClaim], seats: Mapping[str, str]) -> None:
        """Reserve room for the followers of the claims' leaders; release it if `seats` is empty."""
        for claim in claims:
            leader = pod_key(claim.leader)
            self._keep(leader, 0)
            for pod in claim.pods[1:] if seats else ():
                self._nodes.nominate(pod, seats[pod.uid])
                self._stand_ins[leader] = claim.pods[1:]

    def refresh(self, reader: Reader) -> None:
        """Release placeholders of followers that exist, and of leaders that are gone."""
        for leader in list(self._stand_ins):
            obj = reader.get(leader)
            self._keep(leader, 0 if obj is None or not _is_living(obj) else missing_followers(obj, reader))

    def _keep(self, leader: Key, count: int) -> None:
        """Keep at most `count` placeholders of a leader."""
        stand_ins = self._stand_ins.pop(leader, ())
        for pod in stand_ins[count:]:
            self._nodes.withdraw(pod.uid)
        if stand_ins and count:
            self._stand_ins[leader] = stand_ins[:count]


def _is_living(pod: Obj) -> bool:
    return not (is_terminal(pod) or is_terminating(pod))
