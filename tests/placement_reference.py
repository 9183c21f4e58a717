"""A slow, plain search for topology domains, with which the placement of pods in layers of slices is compared.

It counts and sorts every domain anew in each search. Each host has free cpus, and each pod needs some of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Path = tuple[str, ...]
#: The hosts with their numbers of workers, and the host of the leader; None if the pods do not fit.
Placement = tuple[dict[str, int], str] | None


@dataclass(eq=False)
class Domain:
    """A topology domain, and what one search knows about it; `_l` counts beside the leader."""

    path: Path
    free: int = 0
    children: list["Domain"] = field(default_factory=list)
    pods: int = 0
    pods_l: int = 0
    slices: int = 0
    slices_l: int = 0
    leaders: int = 0


@dataclass
class Asked:
    """What is placed: workers, maybe a leader, and the layers of slices as (level, size)."""

    count: int
    cpu: int
    leader_cpu: int
    mode: str
    level: int
    layers: Sequence[tuple[int, int]]


class ReferenceSearch:
    """One search for the pods of a pod set, and perhaps the leader of its group."""

    def __init__(self, hosts: Mapping[Path, int], asked: Asked) -> None:
        self.depths = len(next(iter(hosts)))
        self.asked, self.count = asked, asked.count
        self.want = 1 if asked.leader_cpu else 0
        self.size = asked.layers[0][1] if asked.layers else 1
        self.slice_level = asked.layers[0][0] if asked.layers else self.depths - 1
        self.size_at: dict[int, int] = {}
        last = self.slice_level
        for level, size in asked.layers[1:]:
            self.size_at |= dict.fromkeys(range(last + 1, level + 1), size)
            last = level
        self.level = 0 if asked.mode == "slices" else asked.level
        self.least = asked.mode in {"unconstrained", "slices"}
        self.by_depth: list[dict[Path, Domain]] = [{} for _ in range(self.depths)]
        for path in sorted(hosts):
            for depth in range(self.depths):
                key = path[: depth + 1]
                if key not in self.by_depth[depth]:
                    self.by_depth[depth][key] = Domain(key, hosts[path])
                    if depth:
                        self.by_depth[depth - 1][key[:-1]].children.append(self.by_depth[depth][key])

    # The numbers of pods, slices and leaders that fit.

    def count_up(self, domain: Domain, depth: int) -> None:
        if not domain.children:
            self._count_host(domain)
        else:
            self._sum_up(domain, depth)
        if depth == self.slice_level:
            domain.slices, domain.slices_l = domain.pods // self.size, domain.pods_l // self.size

    def _count_host(self, host: Domain) -> None:
        host.pods = host.pods_l = host.free // self.asked.cpu
        if self.want and host.free >= self.asked.leader_cpu:
            host.leaders = 1
            host.pods_l = (host.free - self.asked.leader_cpu) // self.asked.cpu

    def _sum_up(self, domain: Domain, depth: int) -> None:
        inner = self.size_at.get(depth + 1, 1)
        pod_losses, slice_losses = [], []
        for child in domain.children:
            self.count_up(child, depth + 1)
            pods, pods_l = child.pods // inner * inner, child.pods_l // inner * inner
            domain.pods += pods
            domain.slices += child.slices
            domain.leaders = max(domain.leaders, child.leaders)
            if not self.want or child.leaders:
                pod_losses.append(pods - pods_l)
                slice_losses.append(child.slices - child.slices_l)
        domain.pods_l = domain.pods - min(pod_losses) if pod_losses else 0
        domain.slices_l = domain.slices - min(slice_losses) if slice_losses else 0

    # The order of domains, and the best one.

    def ranked(self, domains: Sequence[Domain]) -> list[Domain]:
        sign = 1 if self.least else -1
        return sorted(domains, key=lambda d: (sign * d.slices, d.pods, d.path))

    def ranked_with_leader(self, domains: Sequence[Domain]) -> list[Domain]:
        sign = 1 if self.least else -1
        return sorted(domains, key=lambda d: (-d.leaders, sign * d.slices_l, d.pods_l, d.path))

    @staticmethod
    def room(domain: Domain, leaders: int, *, by_slices: bool) -> int:
        if by_slices:
            return domain.slices_l if leaders else domain.slices
        return domain.pods_l if leaders else domain.pods

    def best_fit(self, domains: Sequence[Domain], need: int, leaders: int, *, by_slices: bool = True) -> Domain:
        fitting = [d for d in domains if d.leaders >= leaders and self.room(d, leaders, by_slices=by_slices) >= need]
        return min(fitting, key=lambda d: self.room(d, leaders, by_slices=by_slices), default=domains[0])

    def leader_first(self, domains: list[Domain], need: int, leaders: int, *, by_slices: bool) -> list[Domain]:
        if not leaders or len(domains) < 2:
            return domains
        total = sum(self.room(d, 0, by_slices=by_slices) for d in domains)
        for i, d in enumerate(domains):
            loss = self.room(d, 0, by_slices=by_slices) - self.room(d, 1, by_slices=by_slices)
            if d.leaders >= leaders and total - loss >= need:
                return [d, *domains[:i], *domains[i + 1 :]]
        return domains

    # The level with domains that hold all pods.

    def find(self, depth: int) -> tuple[int, list[Domain]] | None:
        need = self.count // self.size
        domains = self.ranked_with_leader(list(self.by_depth[depth].values()))
        fitting = [d for d in domains if d.leaders >= self.want and self.room(d, self.want, by_slices=True) >= need]
        if fitting:
            return depth, [fitting[0] if self.least else self.best_fit(domains, need, self.want)]
        if self.asked.mode == "required":
            return None
        if depth > 0 and not self.least:
            return self.find(depth - 1)
        return self._find_several(depth, self.leader_first(domains, need, self.want, by_slices=True), need)

    def _find_several(self, depth: int, domains: list[Domain], need: int) -> tuple[int, list[Domain]] | None:
        chosen: list[Domain] = []
        leaders, i = self.want, 0
        while leaders > 0 and i < len(domains) and domains[i].leaders > 0:
            d = domains[i]
            if not self.least and d.slices_l >= need:
                d = self.best_fit(domains[i:], need, leaders)
            chosen.append(d)
            leaders, need, i = leaders - d.leaders, need - d.slices_l, i + 1
        rest = self.ranked(domains[i:])
        for position, d in enumerate(rest):
            if need > 0:
                is_last = not self.least and d.slices >= need
                chosen.append(self.best_fit(rest[position:], need, 0) if is_last else d)
                need -= chosen[-1].slices
        return None if leaders > 0 or need > 0 else (depth, chosen)

    # The fewest domains of a level.

    def least_domains(
        self, domains: list[Domain], count: int, leaders: int, size: int, *, by_slices: bool
    ) -> list[Domain]:
        left, unit = (count // size, size) if by_slices else (count, 1)
        domains = self.leader_first(domains, left, leaders, by_slices=by_slices)
        chosen: list[Domain] = []
        for i, each in enumerate(domains):
            d, room = each, self.room(each, leaders, by_slices=by_slices)
            if not self.least and room >= left and d.leaders >= leaders:
                d = self.best_fit(domains[i:], left, leaders, by_slices=by_slices)
                room = self.room(d, leaders, by_slices=by_slices)
            is_last = room >= left and d.leaders >= leaders
            d.leaders = min(d.leaders, leaders)
            d.pods = min(room, left) * unit
            chosen.append(d)
            leaders, left = leaders - d.leaders, left - min(room, left)
            if is_last:
                return chosen
        raise AssertionError("a domain has less room than its parent counted")

    def run(self) -> Placement:
        """Return the placement."""
        if self.level > self.slice_level:
            return None
        for root in self.by_depth[0].values():
            self.count_up(root, 0)
        found = self.find(self.level)
        if found is None:
            return None
        depth, fit = found
        fit = self.least_domains(fit, self.count, self.want, self.size, by_slices=True)
        while depth < self.slice_level:
            below = self.ranked([child for d in fit for child in d.children])
            fit = self.least_domains(below, self.count, self.want, self.size, by_slices=True)
            depth += 1
        while depth < self.depths - 1:
            fit = [child for d in fit for child in self._narrow(d, self.size_at.get(depth + 1, 1))]
            depth += 1
        leader = [d.path[-1] for d in fit if d.leaders > 0]
        return {d.path[-1]: d.pods for d in fit if d.pods > 0}, leader[0] if leader else ""

    def _narrow(self, domain: Domain, size: int) -> list[Domain]:
        below = self.ranked(domain.children)
        if size > 1:
            for child in below:
                child.slices, child.slices_l = child.pods // size, child.pods_l // size
        return self.least_domains(below, domain.pods, domain.leaders, size, by_slices=size > 1)
