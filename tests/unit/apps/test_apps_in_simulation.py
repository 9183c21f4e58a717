"""The controllers of the group `apps` in simulations."""

import pytest

import make
from batchyard import simulate, wiring
from batchyard.sim.scenario import InvalidScenario
from unit.apps.apps_world import app, template

JOB_TEMPLATE = {"spec": make.job(queue=None)["spec"] | {"suspend": False}}
CRON_JOB = {
    "apiVersion": "batch/v1",
    "kind": "CronJob",
    "metadata": {"name": "tick", "namespace": "team"},
    "spec": {"schedule": "*/2 * * * *", "jobTemplate": JOB_TEMPLATE},
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n"},
    "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}, "conditions": [make.condition("Ready")]},
}


def test_cron_job_is_a_periodic_load() -> None:
    result = simulate(CRON_JOB, until="9m")
    assert [job.name.rpartition("-")[0] for job in result.jobs] == ["tick"] * 4


def test_simulation_with_a_cron_job_needs_an_end() -> None:
    with pytest.raises(InvalidScenario, match="CronJobs start Jobs forever, so the run needs an end"):
        simulate(CRON_JOB)


def test_pods_of_a_deployment_run_on_nodes_until_the_end() -> None:
    deployment = {**app("Deployment", replicas=2, template=template())}
    bound = [each for each in simulate(NODE, deployment, until="30m").events if "PodBound" in repr(each)]
    assert len(bound) == 2


def test_simulation_without_such_kinds_creates_no_controller_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[str] = []
    monkeypatch.setattr(wiring, "_create_app", created.append)
    simulate(NODE, make.job(queue=None))
    assert created == []


@pytest.mark.parametrize(("name", "kind"), wiring._APP_KINDS.items())
def test_each_name_creates_its_controller(name: str, kind: str) -> None:
    controller = wiring._create_app(name)
    assert (controller.name, (controller.kinds or ())[0]) == (name, kind)
