"""A machine is lost under a JobSet of high priority: how soon it runs again, and what becomes of the other one."""

from functools import cache

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import seconds
from batchyard.sim.recovery import Loss
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import EPOCH
from clusters.chronicle import EXAMPLES, SHARED, Chronicle, beside

OURS = EXAMPLES / "hotswap"
THEIRS = SHARED / "hotswap"
HIGH, LOW = "high-jax-trillium", "low-jax-trillium"
LOST_AT, REPAIR = 900, 600

#: What differs from one run to another: with Hotswap, with what Kubernetes does alone, and waiting for repair.
MODES = {
    "hotswap": {},
    "kubernetes": {"spec:\n  faults": "spec:\n  hotswap: false\n  faults"},
    "repair": {"value: 2000000": "value: 2000000\npreemptionPolicy: Never"},
}


def texts(whose: str) -> dict[str, str]:
    """The manifests. Theirs with room for both JobSets, as ours have, and told when they come and how long they run."""
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
def played(whose: str, mode: str) -> Chronicle:
    """One run."""
    found = texts(whose)
    for old, new in MODES[mode].items():
        assert any(old in text for text in found.values())
        found = {name: text.replace(old, new) for name, text in found.items()}
    return Chronicle(make_scenario(read_manifests(found.items())))


whoever = pytest.mark.parametrize("whose", ["ours", pytest.param("theirs", marks=beside("hotswap"))])
however = pytest.mark.parametrize("mode", MODES)


def loss_of(chronicle: Chronicle) -> Loss:
    """What the loss of the machine meant for the high-priority JobSet, which is the only one that had it."""
    (loss,) = chronicle.losses
    assert loss.gang.startswith(f"default/jobset-{HIGH}-")
    assert seconds(loss.lost_at - EPOCH) == LOST_AT
    return loss


def recovery(whose: str, mode: str) -> float:
    """How long that JobSet was not whole."""
    loss = loss_of(played(whose, mode))
    assert loss.whole_at is not None
    return seconds(loss.whole_at - loss.lost_at)


@whoever
def test_both_run_side_by_side_before_the_loss(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    for name in (HIGH, LOW):
        begin, end = chronicle.together(name, 8)[0]
        assert begin < LOST_AT <= end


@whoever
def test_hotswap_recovers_in_about_a_minute(whose: str) -> None:
    """Most of it is the time until the node counts as lost."""
    assert 40 < recovery(whose, "hotswap") < 90


@whoever
def test_without_it_recovery_takes_until_the_repair_or_longer(whose: str) -> None:
    assert recovery(whose, "kubernetes") > 5 * recovery(whose, "hotswap")
    assert recovery(whose, "repair") > REPAIR


@whoever
@however
def test_nothing_of_either_is_lost(whose: str, mode: str) -> None:
    chronicle = played(whose, mode)
    for name in (HIGH, LOW):
        job_set = chronicle.world.client.get(Key(scheme.JOB_SET, "default", name))
        assert job_set is not None
        assert job_set["status"]["terminalState"] == "Completed"
        assert len(chronicle.happened("Finished", name)) == 1


@whoever
def test_the_high_one_runs_where_the_low_one_was(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    before, after = chronicle.pools(HIGH, LOST_AT - 1), chronicle.pools(HIGH, LOST_AT + 120)
    (taken,) = set(after) - set(before)
    assert taken in chronicle.pools(LOW, LOST_AT - 1)


@whoever
def test_the_low_one_is_back_as_soon_as_the_slice_is_repaired(whose: str) -> None:
    chronicle = played(whose, "hotswap")
    (victim,) = loss_of(chronicle).victims
    assert victim.gang.startswith(f"default/jobset-{LOW}-")
    assert victim.whole_at is not None
    back_at = seconds(victim.whole_at - EPOCH)
    assert LOST_AT + REPAIR < back_at < LOST_AT + REPAIR + 300
    (lost,) = set(chronicle.pools(HIGH, LOST_AT - 1)) - set(chronicle.pools(HIGH, LOST_AT + 120))
    assert lost in chronicle.pools(LOW, back_at)
    assert chronicle.together(LOW, 8)[-1][0] == back_at


@whoever
def test_waiting_for_repair_costs_nobody_else(whose: str) -> None:
    chronicle = played(whose, "repair")
    assert loss_of(chronicle).victims == []
    assert len(chronicle.together(LOW, 8)) == 1


@whoever
@however
def test_a_slice_is_lost_and_repaired_as_a_whole(whose: str, mode: str) -> None:
    chronicle = played(whose, mode)
    sizes = [chronicle.sizes(f"slice-{number}") for number in range(4)]
    assert sorted(map(tuple, sizes)) == [(0, 1, 2, 3, 4)] * 3 + [(0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4)]


@whoever
@however
def test_no_slice_ever_has_two_jobs_of_one_priority(whose: str, mode: str) -> None:
    seen = list(played(whose, mode).jobs_by_pool())
    assert [pools for pools in seen if any(len(jobs) > 1 for jobs in pools.values())] == []


@beside("hotswap")
def test_the_queue_as_printed_is_refused_for_both_its_faults() -> None:
    found = read_manifests([("q.yaml", (THEIRS / "kueue-as-printed.yaml").read_text("utf-8"))])
    assert [str(fault).partition("tpu-training-cq: ")[2] for fault in found.faults] == [
        "spec.resourceGroups[0].coveredResources: Required value; set it to a list of strings",
        "spec.preemption.reclaimOutOfCohort: unknown field; did you mean reclaimWithinCohort?",
    ]
