"""Why elastic Jobs wait for more pods, and how a preemption would shrink them."""

from typing import Any

import pytest

from batchyard.api import scheme, well_known
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World
from racks import rack_nodes, rack_queues, rack_workload
from unit.jobframework.elastic_worlds import ELASTIC, HIGH, PARTIAL, SHRINKABLE, submitted, urgent, world_of

Document = dict[str, Any]


def why_train(*objects: Any, quota: int, until: int) -> Document:
    """The explanation of the Job `train`."""
    world, _ = world_of(HIGH, *objects, quota=quota, until=until)
    explanation = world.platform.explainer.why(Key(scheme.JOB, "team", "train"), world.kernel.now())
    assert explanation is not None
    return dict(explanation)


def growing(strategy: dict[str, str]) -> Document:
    """A Job with 5 pods that requests 10, in a queue with quota for 7."""
    return why_train(submitted("train", 0, 5, strategy), submitted("train", 10, 10, strategy), quota=7, until=30)


def changes_of(document: Document) -> dict[str, str]:
    return {change["kind"]: change["text"] for change in document["changes"]}


def test_slice_that_grew_in_part_says_what_the_rest_lacks() -> None:
    message = growing(PARTIAL)["binding"]["message"]
    assert message.startswith("3 cpu of flavor spot requested")
    assert "runs with 7 pods; the job grows by as many of the other 3 pods as fit" in message


def test_change_of_quota_admits_the_rest_of_a_slice_that_grew_in_part() -> None:
    """One more CPU would admit one more pod; the proposed quota admits all 3."""
    (patch,) = [change["apply"] for change in growing(PARTIAL)["changes"] if change["kind"] == "quota"][:1]
    assert "10" in str(patch)
    assert "8" not in changes_of(growing(PARTIAL))["quota"]


def test_fewer_pods_are_no_change_for_a_slice_that_grew_in_part() -> None:
    """The Job already has each pod that fits."""
    assert "size" not in changes_of(growing(PARTIAL))


def test_fewer_pods_are_a_change_for_a_slice_that_gets_all_pods_or_none() -> None:
    assert changes_of(growing(ELASTIC))["size"] == "request 7 pods instead of 10"


def test_end_of_another_workload_is_proposed_only_if_it_admits_the_rest() -> None:
    """The first of two other Jobs would free one CPU, but the rest needs two."""
    others = [submitted("one", 1, 1, {}), submitted("two", 2, 1, {})]
    document = why_train(
        submitted("train", 0, 3, PARTIAL), *others, submitted("train", 10, 6, PARTIAL), quota=6, until=30
    )
    assert changes_of(document)["end"].count("team/job-") == 2


# Partial preemption.


@pytest.mark.parametrize(("until", "text"), [(5, "leaves 2 of its 7 pods, if that frees enough"), (60, "no more pods")])
def test_why_says_how_far_a_preemption_would_shrink_a_job(until: int, text: str) -> None:
    document = why_train(submitted("train", 0, 7, SHRINKABLE), *urgent("urgent", 10, 4), quota=7, until=until)
    assert text in document["facts"]["partialPreemption"]


def test_why_says_nothing_of_partial_preemption_for_jobs_that_do_not_allow_it() -> None:
    document = why_train(submitted("train", 0, 7, ELASTIC), quota=7, until=5)
    assert "partialPreemption" not in document["facts"]


def test_why_says_that_a_job_with_topology_domains_is_not_shrunk() -> None:
    annotations = f"{well_known.ELASTIC_JOB}: 'true', {well_known.PARTIAL_PREEMPTION}: 'true', batchyard.dev/"
    manifest = rack_workload("train", 3, "{unconstrained: true}").replace("batchyard.dev/", annotations, 1)
    kueue = "---\napiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
    gates = f"{{{well_known.ELASTIC_TOPOLOGY_GATE}: true, {well_known.PARTIAL_PREEMPTION_GATE}: true}}"
    manifest = manifest.replace("count: 3", "count: 3\n    minCount: 1")
    text = f"{rack_queues()}{rack_nodes('b1r1h1')}{manifest}{kueue}featureGates: {gates}\n"
    world = World(make_scenario(read_manifests([("objects.yaml", text)])))
    world.run_until(20 * SECOND)
    explanation = world.platform.explainer.why(Key(scheme.WORKLOAD, "team", "train"), world.kernel.now())
    assert explanation is not None
    assert explanation["facts"]["partialPreemption"].startswith("not possible: a job that shrinks keeps its topology")
