"""Static node filters, independent of other pods: unschedulable, taints, labels.

Messages are kube-scheduler's. Sources: its plugins nodeunschedulable, tainttoleration and nodeaffinity;
k8s.io/component-helpers nodeaffinity.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod import Taint, Toleration
from batchyard.api.views.pods import NodeRules, NodeTerm

_UNSCHEDULABLE: Final = Taint(well_known.UNSCHEDULABLE, "", "NoSchedule")
_NAME: Final = "metadata.name"


class FilterFailure(NamedTuple):
    """Why a node rejects a pod."""

    reasons: tuple[str, ...]
    #: Whether preemption of pods of lower priority may resolve it.
    may_yield: bool


_CORDONED: Final = FilterFailure(("node(s) were unschedulable",), may_yield=False)
_NO_MATCH: Final = FilterFailure(("node(s) didn't match Pod's node affinity/selector",), may_yield=False)
CONFLICT: Final = FilterFailure(("pod affinity terms conflict",), may_yield=False)
"""No node can match all the required names. The message states it once, without a count."""
_NOT_NAMED: Final = FilterFailure(("node(s) didn't satisfy plugin(s) [NodeAffinity]",), may_yield=False)


def find_obstacle(rules: NodeRules, node: NodeView) -> FilterFailure | None:
    """Return why a node rejects pods with these rules; None if it does not."""
    named = _names(rules)
    if named is not None and node.name not in named:
        return _NOT_NAMED if named else CONFLICT
    if node.unschedulable and not tolerates(rules.tolerations, _UNSCHEDULABLE):
        return _CORDONED
    for taint in node.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not tolerates(rules.tolerations, taint):
            return FilterFailure((f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",), may_yield=False)
    return None if selects(rules, node) else _NO_MATCH


def selects(rules: NodeRules, node: NodeView) -> bool:
    """Whether the node selector and required node affinity match."""
    labels = node.labels
    for key, value in rules.node_selector:
        if labels.get(key) != value:
            return False
    return rules.affinity is None or any(_holds(term, node) for term in rules.affinity)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(toleration.tolerates(taint) for toleration in tolerations)


def tolerates_all(rules: NodeRules, node: NodeView) -> bool:
    """Whether the pods tolerate all NoSchedule and NoExecute taints of the node."""
    return all(taint.effect == "PreferNoSchedule" or tolerates(rules.tolerations, taint) for taint in node.taints)


def preference(rules: NodeRules, node: NodeView) -> int:
    """Return the sum of the weights of matching preferred node affinity terms. An empty term never matches."""
    return sum(weight for weight, term in rules.preferences if _holds(term, node))


def aversion(rules: NodeRules, node: NodeView) -> int:
    """Return the number of PreferNoSchedule taints that the pods do not tolerate."""
    return sum(t.effect == "PreferNoSchedule" and not tolerates(rules.tolerations, t) for t in node.taints)


def _names(rules: NodeRules) -> Sequence[str] | None:
    """Return the node names that the terms allow if every term restricts them; None: no restriction."""
    allowed: list[str] = []
    for term in rules.affinity or ():
        lists = [e.values for e in term.fields if e.key == _NAME and e.operator == "In"]
        if not lists:
            return None
        allowed += [name for name in lists[0] if all(name in values for values in lists)]
    return allowed if rules.affinity else None


def _holds(term: NodeTerm, node: NodeView) -> bool:
    """Whether all requirements of a term match; an empty term never matches."""
    if not term.labels and not term.fields:
        return False
    named: Mapping[str, str] = {_NAME: node.name}
    return all(e.matches(node.labels) for e in term.labels) and all(e.matches(named) for e in term.fields)
