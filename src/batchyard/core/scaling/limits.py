"""How much a cluster may have in all: cores, memory, accelerators. Whatever machines there are count.

Source: kubernetes-sigs/cluster-autoscaler, pkg/resourcequotas, whose words for what is exceeded these are.
"""

from collections.abc import Mapping
from typing import Final

from batchyard.core.scaling.settings import Limit

_MANY: Final = 1 << 30


class Limits:
    """What is left until the limits."""

    def __init__(self, limits: Mapping[str, Limit], used: Mapping[str, int]) -> None:
        self._limits = limits
        self._used = dict(used)

    def allowed(self, uses: Mapping[str, int]) -> int:
        """How many more machines that use so much there may be."""
        bounds = [self._left(resource) // amount for resource, amount in self._limited(uses).items()]
        return max(0, min(bounds, default=_MANY))

    def exceeded(self, uses: Mapping[str, int], count: int = 1) -> list[str]:
        """The resources of which so many more machines would use too much."""
        return [r for r, amount in self._limited(uses).items() if amount * count > self._left(r)]

    def take(self, uses: Mapping[str, int], count: int) -> None:
        """So many machines come."""
        for resource, amount in uses.items():
            self._used[resource] = self._used.get(resource, 0) + amount * count

    def may_go(self, uses: Mapping[str, int], count: int = 1) -> bool:
        """Whether there is still the least there must be if so many machines go."""
        return all(
            self._used.get(resource, 0) - amount * count >= self._limits[resource].least
            for resource, amount in self._limited(uses).items()
        )

    def _limited(self, uses: Mapping[str, int]) -> dict[str, int]:
        return {resource: amount for resource, amount in uses.items() if amount and resource in self._limits}

    def _left(self, resource: str) -> int:
        return self._limits[resource].most - self._used.get(resource, 0)


def tell_exceeded(resources: list[str]) -> str:
    """Why a group cannot grow."""
    return f'exceeded quota: "cluster-wide", resources: {", ".join(resources)}'
