"""The placement of pods in layers of slices, compared with a slow reference in random worlds."""

from dataclasses import dataclass
from typing import Any

import pytest

from batchyard.api.views.node import NodeView
from batchyard.api.well_known import HOSTNAME
from batchyard.base.primitives import draw_integer
from batchyard.topology.assigner import TopologyFailure, assign_domains
from placement_reference import Asked, Path, Placement, ReferenceSearch
from racks import request, state

LEVELS = ("zone", "block", "rack", HOSTNAME)
WORLDS = 150


@dataclass
class Draws:
    """Random numbers from a seed."""

    seed: int
    count: int = 0

    def between(self, low: int, high: int) -> int:
        """A number from `low` through `high`."""
        self.count += 1
        return low + draw_integer(self.seed, "placement", str(self.count)) % (high - low + 1)


def random_hosts(draws: Draws) -> dict[Path, int]:
    """Hosts with 0 to 7 free cpus, in one to three domains of each level above."""
    hosts: dict[Path, int] = {}
    for zone in range(draws.between(1, 2)):
        for block in range(draws.between(1, 3)):
            for rack in range(draws.between(1, 3)):
                for host in range(draws.between(1, 4)):
                    path = (f"z{zone}", f"b{block}", f"r{rack}", f"h{zone}{block}{rack}{host}")
                    hosts[path] = draws.between(0, 7)
    return hosts


def random_request(draws: Draws) -> Asked:
    """A request of any mode with up to three layers of slices, in half of the cases with a leader."""
    levels = [level for level in range(4) if draws.between(0, 1)][:3]
    sizes = [draws.between(1, 3)]
    for _ in levels[1:]:
        sizes.append(sizes[-1] * draws.between(1, 2))
    layers = list(zip(levels, reversed(sizes), strict=True)) if levels else []
    mode = ("required", "preferred", "slices" if layers else "unconstrained")[draws.between(0, 2)]
    level = draws.between(0, layers[0][0] if layers else 3)
    count = draws.between(1, 6) * (layers[0][1] if layers else 1)
    leader_cpu = (0, 0, 1, 3)[draws.between(0, 3)]
    return Asked(count, draws.between(1, 2), leader_cpu, mode, 3 if mode == "unconstrained" else level, layers)


def placed(hosts: dict[Path, int], asked: Asked) -> Placement:
    """The placement by the scheduler's search."""
    nodes = [
        NodeView(path[-1], dict(zip(LEVELS, path, strict=True)), (), False, {"cpu": cpu * 1000, "pods": 110}, True)
        for path, cpu in hosts.items()
    ]
    fields: dict[str, Any] = {} if asked.mode in {"slices", "unconstrained"} else {asked.mode: LEVELS[asked.level]}
    if asked.mode == "unconstrained":
        fields["unconstrained"] = True
    if asked.layers:
        layers = [{"topology": LEVELS[level], "size": size} for level, size in asked.layers]
        fields["podsetSliceRequiredTopologyConstraints"] = layers
    requests = [request(asked.count, "main", asked.cpu, group="g", **fields)]
    if asked.leader_cpu:
        requests.append(request(1, "leader", asked.leader_cpu, group="g", **fields))
    found = assign_domains(state(*nodes, levels=LEVELS), requests)
    if isinstance(found, TopologyFailure):
        return None
    hosts_by_name = {name: {d.values[-1]: d.pods for d in each.domains} for name, each in found.items()}
    return hosts_by_name["main"], next(iter(hosts_by_name.get("leader", {"": 1})))


@pytest.mark.parametrize("seed", range(4))
def test_placement_equals_the_reference_in_random_worlds(seed: int) -> None:
    draws = Draws(seed)
    fitting = 0
    for _ in range(WORLDS):
        hosts, asked = random_hosts(draws), random_request(draws)
        expected = ReferenceSearch(hosts, asked).run()
        assert placed(hosts, asked) == expected, (hosts, asked)
        fitting += expected is not None
    assert fitting > WORLDS // 4


def test_reference_keeps_slices_whole() -> None:
    hosts: dict[Path, int] = {("z", "b", f"r{rack}", f"h{rack}{host}"): 3 for rack in range(2) for host in range(2)}
    asked = Asked(8, 1, 0, "required", 1, [(2, 4), (3, 2)])
    assert ReferenceSearch(hosts, asked).run() == ({"h00": 2, "h01": 2, "h10": 2, "h11": 2}, "")
