"""Exclusive placement: pods that are mutated, rejected and deleted."""

from collections.abc import Sequence
from typing import Any

import pytest

import make
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj
from batchyard.jobs.jobset.exclusive_placement import (
    is_leader,
    is_scheduled_leader,
    misplaced_followers,
    mutate_pod,
    validate_pod,
    with_disruption_target,
)

DOMAIN = "jobset.sigs.k8s.io/"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
POOL = "cloud.google.com/gke-nodepool"
DENIED = 'admission webhook "vpod.kb.io" denied the request: '
PLACE = {"jobset-name": "js", "replicatedjob-name": "w", "job-index": "0", "job-key": "k"}


def pod(index: int, name: str = "", node: str = "", owner: str | None = "uid-job", **fields: Any) -> Obj:
    """A pod of an exclusively placed Job; the value None removes an annotation or a label."""
    annotations = {DOMAIN + "jobset-name": "js", EXCLUSIVE: POOL, **fields.pop("annotations", {})}
    annotations["batch.kubernetes.io/job-completion-index"] = str(index)
    labels = {**{DOMAIN + key: value for key, value in PLACE.items()}, **fields.pop("labels", {})}
    metadata = make.metadata(
        name or f"js-w-0-{index}-abcde",
        labels={k: v for k, v in labels.items() if v is not None},
        annotations={k: v for k, v in annotations.items() if v is not None},
        deletionTimestamp=fields.pop("deleted", None),
    )
    if owner:
        metadata["ownerReferences"] = [{"kind": "Job", "name": "js-w-0", "uid": owner, "controller": True}]
    status = {"status": {"phase": fields.pop("phase")}} if "phase" in fields else {}
    spec = {**make.pod_template()["spec"], "priority": 0, **({"nodeName": node} if node else {}), **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, **status}


def node(name: str, pool: str | None) -> Obj:
    metadata = make.metadata(name, None, labels={POOL: pool} if pool else None)
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}


class FakeReader:
    """A reader of a few pods and nodes."""

    def __init__(self, *objects: Obj) -> None:
        self.objects = objects

    def get(self, key: Key) -> Obj | None:
        result = [o for o in self.objects if o["kind"] == key.kind and o["metadata"]["name"] == key.name]
        return result[0] if result else None

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return [o for o in self.objects if any(r["uid"] == uid for r in o["metadata"].get("ownerReferences", ()))]


SCHEDULED = FakeReader(pod(0, node="n1"), node("n1", "pool-a"))


def test_pods_without_jobset_or_with_node_selector_strategy_are_unchanged() -> None:
    stranger = pod(0, annotations={DOMAIN + "jobset-name": None})
    selecting = pod(1, annotations={BY_SELECTOR: "true"})
    for each in (stranger, selecting):
        assert mutate_pod(each, FakeReader()) is each
        validate_pod(each, FakeReader())


def test_jobset_pod_gets_priority_label() -> None:
    plain = pod(1, annotations={EXCLUSIVE: None}, priority=-5)
    mutated = mutate_pod(plain, FakeReader())
    assert mutated["metadata"]["labels"][DOMAIN + "priority"] == "-5"
    assert mutated["spec"] == plain["spec"]
    validate_pod(mutated, FakeReader())


def test_leader_gets_exclusive_affinity_terms() -> None:
    affinity = mutate_pod(pod(0, priority=7), FakeReader())["spec"]["affinity"]
    (own,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (others,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in (own, others):
        assert (term["topologyKey"], term["namespaceSelector"]) == (POOL, {})
    assert own["labelSelector"] == {
        "matchExpressions": [{"key": DOMAIN + "job-key", "operator": "In", "values": ["k"]}]
    }
    assert others["labelSelector"]["matchExpressions"] == [
        {"key": DOMAIN + "job-key", "operator": "Exists"},
        {"key": DOMAIN + "job-key", "operator": "NotIn", "values": ["k"]},
        {"key": DOMAIN + "priority", "operator": "In", "values": ["7"]},
    ]


def test_leader_keeps_existing_affinity() -> None:
    term = {"topologyKey": "zone"}
    given = {"nodeAffinity": {}, "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    affinity = mutate_pod(pod(0, affinity=given), FakeReader())["spec"]["affinity"]
    assert affinity["nodeAffinity"] == {}
    terms = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (len(terms), terms[0]) == (2, term)


def test_leader_is_accepted_at_once() -> None:
    validate_pod(mutate_pod(pod(0), FakeReader()), FakeReader())


def test_follower_gets_node_selector_of_leader() -> None:
    follower = mutate_pod(pod(1, nodeSelector={"zone": "a"}), SCHEDULED)
    assert follower["spec"]["nodeSelector"] == {"zone": "a", POOL: "pool-a"}
    assert "affinity" not in follower["spec"]
    validate_pod(follower, SCHEDULED)


def refusal(follower: Obj, find: FakeReader) -> str:
    with pytest.raises(Forbidden) as refused:
        validate_pod(mutate_pod(follower, find), find)
    return str(refused.value)


def test_follower_is_rejected_before_leader_is_scheduled() -> None:
    for find in (FakeReader(), FakeReader(pod(0)), FakeReader(node("n1", "pool-a"))):
        assert refusal(pod(1), find) == DENIED + "follower pod node selector not set"
        missing = f"follower pod node selector for topology domain not found. missing selector: {POOL}"
        assert refusal(pod(1, nodeSelector={"zone": "a"}), find) == DENIED + missing


def test_follower_with_preset_domain_is_rejected_without_scheduled_leader() -> None:
    bound = pod(1, nodeSelector={POOL: "pool-b"})
    transient = "this is an expected, transient error"
    unscheduled = f"leader pod not yet scheduled, not creating follower pod. {transient}"
    assert refusal(bound, FakeReader(pod(0))) == DENIED + unscheduled
    assert refusal(bound, FakeReader()) == DENIED + f"expected 1 leader pod (js-w-0-0), but got 0. {transient}"
    two = FakeReader(pod(0, node="n1"), pod(0, name="js-w-0-0-other", node="n1"))
    assert refusal(bound, two) == DENIED + f"expected 1 leader pod (js-w-0-0), but got 2. {transient}"


def test_only_active_leader_of_same_job_counts() -> None:
    on = node("n1", "pool-a")
    leaders = [
        pod(0, node="n1", deleted=make.stamp()),
        pod(0, node="n1", phase="Failed"),
        pod(0, node="n1", phase="Succeeded"),
        pod(0, node="n1", owner="uid-other"),
        pod(2, node="n1"),
    ]
    for leader in leaders:
        assert refusal(pod(1), FakeReader(leader, on)) == DENIED + "follower pod node selector not set"


def test_follower_without_labels_or_owner_is_rejected() -> None:
    bound = {POOL: "pool-b"}
    for name in ("jobset-name", "replicatedjob-name", "job-index"):
        lost = pod(1, nodeSelector=bound, labels={DOMAIN + name: None})
        assert refusal(lost, SCHEDULED) == DENIED + f"pod missing label: {DOMAIN}{name}"
    orphan = pod(1, nodeSelector=bound, owner=None)
    assert refusal(orphan, SCHEDULED) == DENIED + "follower pod has no owner reference"


def test_follower_is_rejected_if_domain_of_leader_is_unknown() -> None:
    denied = 'admission webhook "mpod.kb.io" denied the request: '
    assert refusal(pod(1), FakeReader(pod(0, node="n1"))) == denied + 'nodes "n1" not found'
    unlabeled = FakeReader(pod(0, node="n1"), node("n1", None))
    assert refusal(pod(1), unlabeled) == denied + f"node does not have topology label: {POOL}"


def test_leads_accepts_scheduled_leader_only() -> None:
    assert is_scheduled_leader(pod(0, node="n1"))
    assert is_leader(pod(0))
    others = [pod(0), pod(1, node="n1"), pod(0, node="n1", annotations={EXCLUSIVE: None})]
    assert not any(map(is_scheduled_leader, [*others, pod(0, node="n1", deleted=make.stamp())]))


LEADER = pod(0, node="n1")
HERE, THERE = {POOL: "pool-a"}, {POOL: "pool-b"}


def names(pods: Sequence[Obj]) -> list[str]:
    return [each["metadata"]["name"] for each in pods]


@pytest.mark.parametrize("selector", [THERE, {}, {"zone": "a"}])
def test_all_followers_are_misplaced_if_single_follower_is(selector: Obj) -> None:
    owned = [LEADER, pod(1, "a", nodeSelector=HERE), pod(2, "b", nodeSelector=selector)]
    assert names(misplaced_followers(LEADER, node("n1", "pool-a"), owned)) == ["a", "b"]


def test_followers_in_domain_of_leader_are_not_misplaced() -> None:
    owned = [LEADER, pod(1, nodeSelector=HERE), {"apiVersion": "v1", "kind": "Other", "metadata": {}}]
    assert misplaced_followers(LEADER, node("n1", "pool-a"), owned) == []


def test_terminating_followers_are_not_misplaced() -> None:
    leaving = pod(1, "a", nodeSelector=THERE, deleted=make.stamp())
    assert misplaced_followers(LEADER, node("n1", "pool-a"), [leaving, pod(1, "b", nodeSelector=HERE)]) == []


def test_no_follower_is_misplaced_while_domain_of_leader_is_unknown() -> None:
    owned = [pod(1, nodeSelector=THERE)]
    assert misplaced_followers(LEADER, None, owned) == []
    assert misplaced_followers(LEADER, node("n1", None), owned) == []


def test_disrupted_sets_condition_once() -> None:
    marked = with_disruption_target(pod(1), make.at(9))
    assert marked["status"]["conditions"] == [
        {
            "type": "DisruptionTarget",
            "status": "True",
            "lastTransitionTime": make.stamp(9),
            "reason": "ExclusivePlacementViolation",
            "message": "Pod violated JobSet exclusive placement policy",
        }
    ]
    assert with_disruption_target(marked, make.at(10)) is marked
