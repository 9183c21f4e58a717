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
from sim_worlds.world_history import EXAMPLES, SHARED, WorldHistory, skip_without_manifests

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
    """Return the manifests. Those of the article get capacity for both JobSets, submit times and run times."""
    ours = {path.name: path.read_text("utf-8") for path in sorted(OURS.glob("*.yaml"))}
    if whose == "ours":
        return ours
    names = ("kueue.yaml", "priorityclasses.yaml", "jobset-low.yaml", "jobset-high.yaml")
    result = {name: (THEIRS / name).read_text("utf-8") for name in names}
    result["kueue.yaml"] = result["kueue.yaml"].replace("nominalQuota: 32", "nominalQuota: 64")
    for name, at, lasts in (("jobset-low.yaml", "1s", "2h"), ("jobset-high.yaml", "2s", "30m")):
        notes = f"annotations:\n    batchyard.dev/submit-at: {at}\n    batchyard.dev/runtime: {lasts}\n"
        result[name] = result[name].replace("annotations:\n", notes, 1)
    return {name: ours[name] for name in ("cluster.yaml", "scenario.yaml")} | result


@cache
def history_of(whose: str, mode: str) -> WorldHistory:
    """Return the history of one run."""
    result = texts(whose)
    for old, new in MODES[mode].items():
        assert any(old in text for text in result.values())
        result = {name: text.replace(old, new) for name, text in result.items()}
    return WorldHistory(make_scenario(read_manifests(result.items())))


each_source = pytest.mark.parametrize(
    "whose", ["ours", pytest.param("theirs", marks=skip_without_manifests("hotswap"))]
)
each_mode = pytest.mark.parametrize("mode", MODES)


def machine_loss(history: WorldHistory) -> GangLoss:
    """Return the loss of the high-priority JobSet, the only one on the lost machine."""
    (loss,) = history.losses
    assert loss.gang.startswith(f"default/jobset-{HIGH}-")
    assert duration_seconds(loss.lost_at - EPOCH) == LOST_AT
    return loss


def recovery(whose: str, mode: str) -> float:
    """Return the seconds in which that JobSet was incomplete."""
    loss = machine_loss(history_of(whose, mode))
    assert loss.recovered_at is not None
    return duration_seconds(loss.recovered_at - loss.lost_at)


def lost_slice(history: WorldHistory) -> str:
    """Return the pool that lost its nodes."""
    (name,) = [name for name in SLICES if 0 in history.sizes(name)[1:]]
    return name


def job_set(history: WorldHistory, name: str) -> Obj:
    """Return a JobSet at the end."""
    result = history.world.client.get(Key(scheme.JOB_SET, "default", name))
    assert result is not None
    return result


@each_source
def test_both_job_sets_run_before_machine_loss(whose: str) -> None:
    history = history_of(whose, "hotswap")
    for name in (HIGH, LOW):
        begin, end = history.together(name, 8)[0]
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
    history = history_of(whose, mode)
    for name in (HIGH, LOW):
        assert job_set(history, name)["status"]["terminalState"] == "Completed"
        assert len(history.happened("Finished", name)) == 1


@each_source
def test_high_priority_job_set_takes_slice_of_low_priority_job_set(whose: str) -> None:
    history = history_of(whose, "hotswap")
    after = history.pools(HIGH, LOST_AT + 120)
    assert set(after) & set(history.pools(LOW, LOST_AT - 1))
    assert lost_slice(history) not in after


@each_source
def test_low_priority_job_set_is_preempted_and_requeued(whose: str) -> None:
    history = history_of(whose, "hotswap")
    (reported,) = [record for record in history.records if record["event"] == "Preempted"]
    assert reported["reason"] == "Hotswap"
    (preempted,) = history.happened("Preempted", LOW)
    first, second = history.happened("QuotaReserved", LOW)
    assert first < preempted <= second < preempted + 10
    assert job_set(history, LOW)["status"]["restarts"] == 0


@each_source
def test_low_priority_job_set_restarts_after_repair(whose: str) -> None:
    history = history_of(whose, "hotswap")
    (victim,) = machine_loss(history).victims
    assert victim.gang.startswith(f"default/jobset-{LOW}-")
    assert victim.recovered_at is not None
    back_at = duration_seconds(victim.recovered_at - EPOCH)
    assert LOST_AT + REPAIR < back_at < LOST_AT + REPAIR + 300
    assert lost_slice(history) in history.pools(LOW, back_at)
    assert history.together(LOW, 8)[-1][0] == back_at


@pytest.mark.parametrize(
    ("whose", "saved"), [("ours", 900), pytest.param("theirs", 0, marks=skip_without_manifests("hotswap"))]
)
def test_low_priority_job_set_resumes_from_last_checkpoint(whose: str, saved: int) -> None:
    """The example saves its work every 5 min and ran for almost 16 min; the article saves nothing."""
    history = history_of(whose, "hotswap")
    (back_at,) = [begin for begin, _ in history.together(LOW, 8) if begin > LOST_AT]
    (finished_at,) = history.happened("Finished", LOW)
    assert 7200 - saved <= finished_at - back_at < 7200 - saved + 10


@each_source
def test_waiting_for_repair_preempts_no_other_job_set(whose: str) -> None:
    history = history_of(whose, "repair")
    assert machine_loss(history).victims == []
    assert len(history.together(LOW, 8)) == 1


@each_source
@each_mode
def test_slice_is_lost_and_repaired_as_whole(whose: str, mode: str) -> None:
    history = history_of(whose, mode)
    assert sorted(tuple(history.sizes(name)) for name in SLICES) == [(0, 1, 2, 3, 4)] * 3 + [
        (0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4)
    ]


@each_source
@pytest.mark.parametrize("mode", ["hotswap", "repair", "together", "together, repair"])
def test_no_slice_ever_runs_two_jobs(whose: str, mode: str) -> None:
    seen = list(history_of(whose, mode).jobs_by_pool())
    assert [pools for pools in seen if any(len(jobs) > 1 for jobs in pools.values())] == []


@each_source
@pytest.mark.parametrize("mode", ["together", "together, repair"])
def test_simultaneous_job_sets_are_placed_without_conflict(whose: str, mode: str) -> None:
    """JobSet separates only JobSets of equal priority, but placement uses a domain with room for the whole JobSet."""
    history = history_of(whose, mode)
    starts = [history.together(name, 8)[0][0] for name in (HIGH, LOW)]
    assert max(starts) < 60
    restarts = [job_set(history, name)["status"]["restarts"] for name in (HIGH, LOW)]
    assert restarts == [1, 0]


@skip_without_manifests("hotswap")
def test_invalid_queue_from_article_is_rejected_with_both_faults() -> None:
    result = read_manifests([("q.yaml", (THEIRS / "kueue-as-printed.yaml").read_text("utf-8"))])
    assert [str(fault).partition("tpu-training-cq: ")[2] for fault in result.faults] == [
        "spec.resourceGroups[0].coveredResources: Required value; set the field to a list of strings",
        "spec.preemption.reclaimOutOfCohort: unknown field; did you mean reclaimWithinCohort?",
    ]


QUEUE_LABEL = "  labels:\n    kueue.x-k8s.io/queue-name: default-queue\n"


@cache
def history_without_queue(mode: str) -> WorldHistory:
    """Return the history of our JobSets without a queue: only pod priority decides."""
    result = texts("ours")
    assert result["jobsets.yaml"].count(QUEUE_LABEL) == 2
    result["jobsets.yaml"] = result["jobsets.yaml"].replace(QUEUE_LABEL, "")
    for old, new in MODES[mode].items():
        result = {name: text.replace(old, new) for name, text in result.items()}
    return WorldHistory(make_scenario(read_manifests(result.items())))


def test_job_set_without_queue_recovers_by_pod_priority() -> None:
    (loss,) = history_without_queue("hotswap").losses
    assert loss.gang == f"default/{HIGH}"
    assert loss.recovered_at is not None
    assert 60 <= duration_seconds(loss.recovered_at - loss.lost_at) < 62
    assert [victim.gang for victim in loss.victims] == [f"default/{LOW}"]
    assert not history_without_queue("hotswap").world.objects(scheme.WORKLOAD)


def test_job_set_without_queue_and_hotswap_waits_for_kubernetes() -> None:
    (loss,) = history_without_queue("kubernetes").losses
    assert loss.recovered_at is not None
    assert duration_seconds(loss.recovered_at - loss.lost_at) > 600


def test_preempted_job_set_without_queue_completes_after_repair() -> None:
    objects = {obj["metadata"]["name"]: obj for obj in history_without_queue("hotswap").world.objects(scheme.JOB_SET)}
    assert [objects[name]["status"]["terminalState"] for name in (HIGH, LOW)] == ["Completed", "Completed"]
