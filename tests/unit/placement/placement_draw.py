"""Hypothesis strategies for nodes and pods, used by property tests of placement."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from batchyard.api.meta import Obj
from unit.placement.placement_make import ZONE, node, pod, pod_term, preferred, required

GOLD = {"matchLabels": {"tier": "gold"}}
NAMES = [f"n{i}" for i in range(6)]
TAINT = {"key": "t", "value": "v", "effect": "NoSchedule"}
SOFT_TAINT = {"key": "s", "value": "v", "effect": "PreferNoSchedule"}


def nodes() -> st.SearchStrategy[Obj]:
    """Nodes of different sizes and kinds."""
    return st.builds(
        lambda name, zone, cpu, gpu, taints, cordoned: node(
            name, zone, cpu=cpu, gpu=gpu, taints=taints, unschedulable=cordoned
        ),
        st.sampled_from(NAMES),
        st.sampled_from(["y", "z"]),
        st.sampled_from(["2", "4", "8"]),
        st.sampled_from(["0", "2"]),
        st.sampled_from([[], [], [TAINT], [SOFT_TAINT]]),
        st.sampled_from([False, False, False, True]),
    )


def constraints() -> st.SearchStrategy[Mapping[str, Any]]:
    """Scheduling constraints of pods other than resources."""
    spread = {"maxSkew": 1, "topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
    return st.sampled_from(
        [
            {},
            {},
            {"nodeSelector": {ZONE: "y"}},
            {"tolerations": [{"operator": "Exists"}]},
            {"preemptionPolicy": "Never"},
            {"affinity": required("podAntiAffinity", pod_term())},
            {"affinity": required("podAntiAffinity", pod_term(ZONE, namespaceSelector=GOLD))},
            {"affinity": required("podAffinity", pod_term(ZONE, namespaceSelector=GOLD))},
            {"affinity": required("podAffinity", pod_term(ZONE))},
            {"affinity": preferred("podAffinity", 5, pod_term(ZONE))},
            {"affinity": preferred("nodeAffinity", 5, {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]})},
            {"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "DoNotSchedule"}]},
            {"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}]},
            {"ports": [{"containerPort": 80, "hostPort": 80}]},
        ]
    )


def pods(prefix: str = "p") -> st.SearchStrategy[Obj]:
    """Pods with all kinds of scheduling constraints."""
    return st.builds(
        lambda number, cpu, app, priority, constraint: pod(
            f"{prefix}{number}", cpu=cpu, labels={"app": app}, priority=priority, **constraint
        ),
        st.integers(0, 9),
        st.sampled_from(["500m", "1", "2"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0, 10]),
        constraints(),
    )
