"""The missing amounts of pending Workloads on the page, in `why` and in the condition, when the condition is older."""

import pytest

import make
import yard
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.base.instant import SECOND
from batchyard.dashboard.data_source import FullAccess
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World

QUEUES = (yard.queue("cq", 20), make.local_queue(), make.flavor("spot"), make.namespace())


def submitted_at(obj: Obj, moment: str) -> Obj:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"uid", "creationTimestamp"}}
    return {**obj, "metadata": {**metadata, "annotations": {"batchyard.dev/submit-at": moment}}}


class OutdatedCondition:
    """A Workload that waited for 2.5 cpu when it was evaluated; the usage of its queue has grown since."""

    def __init__(self) -> None:
        requests = {"first": 10, "waits": "12500m", "small": 4}
        workloads = [
            submitted_at(yard.workload(name, cpu, queue="lq"), f"{second}s")
            for second, (name, cpu) in enumerate(requests.items())
        ]
        self.world = World(scenario_of([*QUEUES, *workloads]))
        history = PlatformHistory(self.world.kernel.now, self.world.platform.index.cluster_queue_of)
        self.world.client.subscribe(history.observe)
        self.world.run_until(30 * SECOND)
        self.world.flush_batched_writes()
        time = PlatformTime(self.world.kernel.now, 0)
        self.pages = DashboardViews(self.world.client, self.world.platform.index, history, time)


@pytest.fixture(scope="module")
def outdated() -> OutdatedCondition:
    return OutdatedCondition()


def test_condition_keeps_the_amount_of_its_evaluation(outdated: OutdatedCondition) -> None:
    workload = outdated.world.client.get(Key(scheme.WORKLOAD, "team", "waits"))
    assert workload is not None
    condition = find_condition(workload, "QuotaReserved")
    assert condition is not None
    assert condition["message"].endswith("2500m more needed")


def test_why_has_the_present_amount_and_says_that_the_condition_is_older(outdated: OutdatedCondition) -> None:
    explainer, now = outdated.world.platform.explainer, outdated.world.kernel.now()
    document = explainer.why(Key(scheme.WORKLOAD, "team", "waits"), now)
    assert document is not None
    assert document["binding"]["missing"] == "6500m"
    assert "6.5 more needed" in document["summary"]
    expected = "QuotaReserved says 2.5 cpu more needed: the usage of quota has changed since it was written"
    assert document["facts"]["condition"] == expected


@pytest.mark.parametrize(("view", "field"), [("workloads", "rows"), ("overview", "waiting")])
def test_page_has_the_present_amount(outdated: OutdatedCondition, view: str, field: str) -> None:
    model = outdated.pages.model(view, {}, FullAccess())
    assert model is not None
    (row,) = [row for row in model[field] if row["name"] == "waits"]
    assert (row["scarce"], row["brief"]) == ("cpu", "6.5 more needed in spot")


def test_up_to_date_condition_is_not_mentioned() -> None:
    workloads = [submitted_at(yard.workload(name, 15, queue="lq"), f"{at}s") for at, name in enumerate(("a", "b"))]
    world = World(scenario_of([*QUEUES, *workloads]))
    world.run_until(30 * SECOND)
    world.flush_batched_writes()
    document = world.platform.explainer.why(Key(scheme.WORKLOAD, "team", "b"), world.kernel.now())
    assert document is not None
    assert document["binding"]["missing"] == "10"
    assert "facts" not in document
