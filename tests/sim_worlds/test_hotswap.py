"""A JobSet of high priority loses a machine: its recovery, and the effect on the other JobSet."""

from functools import cache

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import duration_seconds
from batchyard.sim.recovery import GangLoss
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import EPOCH
from sim_worlds.world_history import EXAMPLES, SHARED, WorldHistory, beside

OURS = EXAMPLES / "hotswap"
THEIRS = SHARED / "hotswap"
HIGH, LOW = "high-jax-trillium", "low-jax-trillium"
LOST_AT, REPAIR = 900, 600
SLICES = [f"slice-{number}" for number in range(4)]

#: The text replacements of each run: Hotswap, Kubernetes alone, and waiting for repair; JobSets one after the other,
#: or both at once.
MODES: dict[str, dict[str, str]] = {
    "hotswap": {},
    "kubernetes": {"spec:\n  faults": "spec:\n  hotswap: false\n  faults"},
    "repair": {"value: 2000000": "value: 2000000\npreemptionPolicy: Never"},
    "together": {"submit-at: 2s": "submit-at: 1s"},
    "together, repair": {"submit-at: 2s": "submit-at: 1s", "value: 2000000": "value: 2000000\npreemptionPolicy: Never"},
}


def texts(whose: str) -> dict[str, str]:
    """Return the manifests. Theirs get room for both JobSets, as ours have, submit times and run times."""
    ours = {path.name: path.read_text("utf-8") for path in sorted(OURS.glob("*.yaml"))}
    if whose == "ours":
        return ours
    names = ("kueue.yaml", "priorityclasses.yaml", "jobset-low.yaml", "jobset-high.yaml")
    found = {name: (THEIRS / name).read_text("utf-8") for name in names}
    found["kueue.yaml"] = found["kueue.yaml"].replace("nominalQuota: 32", "nominalQuota: 64")
    for name, at, lasts in (("jobset-low.yaml", "1s", "2h"), ("jobset-high.yaml", "2s", "30m")):
        notes = f"annotations:\n    batchyard.dev/submit-at: {at}\n    batchyard.dev/runtime: {lasts}\n"
        found[name] = found[name].replace("annotations:\n", notes, 1)
    return {name: ours[name] for name in ("cluster.yaml", "scenario.yaml")} | found


@cache
def played(whose: str, mode: str) -> WorldHistory:
    """Return the chronicle of one run."""
    found = texts(whose)
    for old, new in MODES[mode].items():
        assert any(old in text for text in found.values())
        found = {name: text.replace(old, new) for name, text in found.items()}
    return WorldHistory(make_scenario(read_manifests(found.items())))


each_source = pytest.mark.parametrize("whose", ["ours", pytest.param("theirs", marks=beside("hotswap"))])
each_mode = pytest.mark.parametrize("mode", MODES)


def loss_of(chronicle: WorldHistory) -> GangLoss:
    """Return the loss of the high-priority JobSet, the only one on the lost machine."""
    (loss,) = chronicle.losses
    assert loss.gang.startswith(f"default/jobset-{HIGH}-")
    assert duration_seconds(loss.lost_at - EPOCH) == LOST_AT
    return loss


def recovery(whose: str, mode: str) -> float:
    """Return the seconds in which that JobSet was incomplete."""
    loss = loss_of(played(whose, mode))
    assert loss.recovered_at is not None
    return duration_seconds(loss.recovered_at - loss.lost_at)


def lost_slice(chronicle: WorldHistory) -> str:
    """Return the pool that lost its nodes."""
    (name,) = [name for name in SLICES if 0 in chronicle.sizes(name)[1:]]
    return name


def job_set(chronicle: WorldHistory, name: str) -> Obj:
    """Return a JobSet at the end."""
    found = chronicle.world.client.get(Key(scheme.JOB_SET, "default", name))
    assert found is not None
    return found


@each_source
def test_both_job_sets_run_before_machine_loss(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    for name in (HIGH, LOW):
        begin, end = chronicle.together(name, 8)[0]
        assert begin < LOST_AT <= end


@each_source
def test_hotswap_recovers_in_about_one_minute(whose: str) -> None:
    """Most of this time passes until the node counts as lost."""
    assert 40 < recovery(whose, "hotswap") < 90


@each_source
def test_recovery_without_hotswap_takes_at_least_until_repair(whose: str) -> None:
    assert recovery(whose, "kubernetes") > 5 * recovery(whose, "hotswap")
    assert recovery(whose, "repair") > REPAIR


@each_source
@each_mode
def test_both_job_sets_complete_once(whose: str, mode: str) -> None:
    chronicle = played(whose, mode)
    for name in (HIGH, LOW):
        assert job_set(chronicle, name)["status"]["terminalState"] == "Completed"
        assert len(chronicle.happened("Finished", name)) == 1


@each_source
def test_high_priority_job_set_takes_slice_of_low_priority_job_set(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    after = chronicle.pools(HIGH, LOST_AT + 120)
    assert set(after) & set(chronicle.pools(LOW, LOST_AT - 1))
    assert lost_slice(chronicle) not in after


@each_source
def test_low_priority_job_set_is_preempted_and_requeued(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    (reported,) = [record for record in chronicle.records if record["event"] == "Preempted"]
    assert reported["reason"] == "Hotswap"
    (preempted,) = chronicle.happened("Preempted", LOW)
    first, second = chronicle.happened("QuotaReserved", LOW)
    assert first < preempted <= second < preempted + 10
    assert job_set(chronicle, LOW)["status"]["restarts"] == 0


@each_source
def test_low_priority_job_set_restarts_after_repair(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    (victim,) = loss_of(chronicle).victims
    assert victim.gang.startswith(f"default/jobset-{LOW}-")
    assert victim.recovered_at is not None
    back_at = duration_seconds(victim.recovered_at - EPOCH)
    assert LOST_AT + REPAIR < back_at < LOST_AT + REPAIR + 300
    assert lost_slice(chronicle) in chronicle.pools(LOW, back_at)
    assert chronicle.together(LOW, 8)[-1][0] == back_at


@pytest.mark.parametrize(("whose", "saved"), [("ours", 900), pytest.param("theirs", 0, marks=beside("hotswap"))])
def test_low_priority_job_set_resumes_from_last_checkpoint(whose: str, saved: int) -> None:
    """Ours saves its work each 5 min, and ran for almost 16 min; theirs saves nothing."""
    chronicle = played(whose, "hotswap")
    (back_at,) = [begin for begin, _ in chronicle.together(LOW, 8) if begin > LOST_AT]
    (finished_at,) = chronicle.happened("Finished", LOW)
    assert 7200 - saved <= finished_at - back_at < 7200 - saved + 10


@each_source
def test_waiting_for_repair_preempts_no_other_job_set(whose: str) -> None:
    chronicle = played(whose, "repair")
    assert loss_of(chronicle).victims == []
    assert len(chronicle.together(LOW, 8)) == 1


@each_source
@each_mode
def test_slice_is_lost_and_repaired_as_whole(whose: str, mode: str) -> None:
    chronicle = played(whose, mode)
    assert sorted(tuple(chronicle.sizes(name)) for name in SLICES) == [(0, 1, 2, 3, 4)] * 3 + [
        (0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4)
    ]


@each_source
@pytest.mark.parametrize("mode", ["hotswap", "repair", "together", "together, repair"])
def test_no_slice_ever_runs_two_jobs(whose: str, mode: str) -> None:
    seen = list(played(whose, mode).jobs_by_pool())
    assert [pools for pools in seen if any(len(jobs) > 1 for jobs in pools.values())] == []


@each_source
@pytest.mark.parametrize("mode", ["together", "together, repair"])
def test_simultaneous_job_sets_are_placed_without_conflict(whose: str, mode: str) -> None:
    """JobSet separates only those of the same priority, but each is placed where it fits completely."""
    chronicle = played(whose, mode)
    starts = [chronicle.together(name, 8)[0][0] for name in (HIGH, LOW)]
    assert max(starts) < 60
    restarts = [job_set(chronicle, name)["status"]["restarts"] for name in (HIGH, LOW)]
    assert restarts == [1, 0]


@beside("hotswap")
def test_invalid_queue_from_article_is_rejected_with_both_faults() -> None:
    found = read_manifests([("q.yaml", (THEIRS / "kueue-as-printed.yaml").read_text("utf-8"))])
    assert [str(fault).partition("tpu-training-cq: ")[2] for fault in found.faults] == [
        "spec.resourceGroups[0].coveredResources: Required value; set the field to a list of strings",
        "spec.preemption.reclaimOutOfCohort: unknown field; did you mean reclaimWithinCohort?",
    ]


QUEUE_LABEL = "  labels:\n    kueue.x-k8s.io/queue-name: default-queue\n"


@cache
def unqueued(mode: str) -> WorldHistory:
    """Return the chronicle of our JobSets without a queue: only pod priority decides."""
    found = texts("ours")
    assert found["jobsets.yaml"].count(QUEUE_LABEL) == 2
    found["jobsets.yaml"] = found["jobsets.yaml"].replace(QUEUE_LABEL, "")
    for old, new in MODES[mode].items():
        found = {name: text.replace(old, new) for name, text in found.items()}
    return WorldHistory(make_scenario(read_manifests(found.items())))


def test_job_set_without_queue_recovers_by_pod_priority() -> None:
    (loss,) = unqueued("hotswap").losses
    assert loss.gang == f"default/{HIGH}"
    assert loss.recovered_at is not None
    assert 60 <= duration_seconds(loss.recovered_at - loss.lost_at) < 62
    assert [victim.gang for victim in loss.victims] == [f"default/{LOW}"]
    assert not unqueued("hotswap").world.objects(scheme.WORKLOAD)


def test_job_set_without_queue_and_hotswap_waits_for_kubernetes() -> None:
    (loss,) = unqueued("kubernetes").losses
    assert loss.recovered_at is not None
    assert duration_seconds(loss.recovered_at - loss.lost_at) > 600


def test_preempted_job_set_without_queue_completes_after_repair() -> None:
    objects = {obj["metadata"]["name"]: obj for obj in unqueued("hotswap").world.objects(scheme.JOB_SET)}
    assert [objects[name]["status"]["terminalState"] for name in (HIGH, LOW)] == ["Completed", "Completed"]
