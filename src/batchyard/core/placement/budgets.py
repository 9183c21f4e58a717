"""Disruption budgets as who asks pods to leave sees them: what is left of each, and whom it guards.

Sources: kube-scheduler's plugin defaultpreemption (filterPodsWithPDBViolation); kubernetes-sigs/cluster-autoscaler,
pkg/core/scaledown/pdb.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.selectors import Selector, selector
from batchyard.api.views.pods import PodView


@dataclass(frozen=True, slots=True)
class _Budget:
    """One budget."""

    chosen: Selector | None
    allowed: int
    #: Pods that were let go already.
    gone: dict[str, None]

    def guards(self, pod: PodView) -> bool:
        """Whether it is about a pod of its Namespace."""
        return self.chosen is not None and self.chosen.matches(pod.labels)


class Budgets:
    """All budgets."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[Key, _Budget]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_namespace)

    def set(self, obj: Obj) -> None:
        """A budget came or changed."""
        key, status = key_of(obj), obj.get("status") or {}
        gone: dict[str, None] = dict.fromkeys(status.get("disruptedPods") or ())
        chosen = selector((obj.get("spec") or {}).get("selector"))
        allowed = status.get("disruptionsAllowed", 0)
        self._by_namespace.setdefault(key.namespace, {})[key] = _Budget(chosen, allowed, gone)

    def remove(self, key: Key) -> None:
        """A budget is gone."""
        known = self._by_namespace.get(key.namespace, {})
        known.pop(key, None)
        if not known:
            self._by_namespace.pop(key.namespace, None)

    def violating(self, pods: Iterable[PodView]) -> dict[str, None]:
        """The uids of those pods for whom too little is left when they leave in this order."""
        left: dict[Key, int] = {}
        found: dict[str, None] = {}
        for pod in pods:
            for key, budget in self._by_namespace.get(pod.namespace, {}).items():
                if not pod.labels or not budget.chosen or not budget.chosen.requirements or not budget.guards(pod):
                    continue  # here one that selects everything selects nothing
                if pod.name in budget.gone:
                    continue
                left[key] = left.get(key, budget.allowed) - 1
                if left[key] < 0:
                    found[pod.uid] = None
        return found

    def rest(self) -> "Rest":
        """What is left of them, to be used up."""
        return Rest(self._by_namespace)


class Rest:
    """What is left of budgets while nodes are tried that could go."""

    def __init__(self, budgets: dict[str, dict[Key, _Budget]]) -> None:
        self._budgets = budgets
        self._left = {key: budget.allowed for each in budgets.values() for key, budget in each.items()}

    def blocks(self, pod: PodView) -> bool:
        """Whether nothing is left of a budget that guards a pod."""
        return any(self._left[key] < 1 for key in self._guarding(pod))

    def take(self, pods: Iterable[PodView]) -> None:
        """These pods are to leave."""
        for pod in pods:
            for key in self._guarding(pod):
                self._left[key] -= 1

    def _guarding(self, pod: PodView) -> Iterable[Key]:
        return [key for key, budget in self._budgets.get(pod.namespace, {}).items() if budget.guards(pod)]
