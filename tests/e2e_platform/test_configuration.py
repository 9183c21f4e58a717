"""The Configuration of Kueue, with a running operator and a running platform."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.kill_rounds import PlainHttpClient, ask
from e2e_platform.operator_process import OperatorRun, plain_kubeconfig
from e2e_platform.platform_process import Child, UpProcess
from e2e_platform.test_crashes import WORKLOADS, submitted

#: Pods are created, but no kubelet runs them.
IDLE = ("--insecure-loopback", "--speed", "60x")
HEAD = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
LIMITED = f"""{HEAD}metrics: {{bindAddress: ":8443"}}
waitForPodsReady:
  timeout: 30s
  requeuingStrategy: {{backoffLimitCount: 2, backoffBaseSeconds: 10}}
"""


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start_operator(exit_stack: ExitStack, tmp_path: Path) -> Callable[[str], tuple[UpProcess, OperatorRun]]:
    """A platform without kubelets, an operator with a Configuration, and one Job."""

    def begun(text: str) -> tuple[UpProcess, OperatorRun]:
        platform = exit_stack.enter_context(UpProcess(tmp_path, *IDLE, "--controllers", "*,-admission,-runtime"))
        options = ["--config", str(write_configuration(tmp_path, text))] if text else []
        kubeconfig = plain_kubeconfig(tmp_path, platform.url)
        operator = OperatorRun(kubeconfig, "--controllers", "admission", *options)
        exit_stack.enter_context(operator).wait_until("runs admission")
        one_job(platform)
        return platform, operator

    return begun


def write_configuration(folder: Path, text: str) -> Path:
    path = folder / "kueue.yaml"
    path.write_text(text)
    return path


def one_job(platform: UpProcess) -> None:
    for path, obj in list(submitted())[:4]:
        assert ask(platform.url, "POST", path, obj)[0] == 201


def conditions(workload: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    reported = (workload.get("status") or {}).get("conditions") or ()
    return {each["type"]: (each["status"], each["reason"]) for each in reported}


def states(platform: UpProcess, until: Callable[[Mapping[str, Any]], bool]) -> Iterator[Mapping[str, Any]]:
    """The Workload after each change, until it satisfies a condition."""
    with PlainHttpClient(platform.url) as client:
        for event in client.lines(f"{WORKLOADS}?watch=1&resourceVersion=1"):
            yield event["object"]
            if until(event["object"]):
                return


def test_operator_requeues_with_backoff_and_deactivates_job_without_ready_pods(
    start_operator: Callable[[str], tuple[UpProcess, OperatorRun]],
) -> None:
    platform, operator = start_operator(LIMITED)
    counts: dict[int, None] = {}
    evictions: list[str] = []
    for workload in states(platform, lambda w: conditions(w).get("QuotaReserved") == ("False", "Deactivated")):
        counts[(workload.get("status", {}).get("requeueState") or {}).get("count", 0)] = None
        evicted = conditions(workload).get("Evicted")
        evictions += [evicted[1]] if evicted and evicted[0] == "True" and evicted[1] not in evictions else []
    assert list(counts)[:3] == [0, 1, 2]
    assert evictions == ["PodsReadyTimeout", "DeactivatedDueToRequeuingLimitExceeded"]
    assert workload["spec"]["active"] is False
    assert "kueue.yaml: ignored fields, which configure Kueue's own deployment: metrics" in operator.log()


def test_operator_without_configuration_reports_pods_ready_condition(
    start_operator: Callable[[str], tuple[UpProcess, OperatorRun]],
) -> None:
    platform, _ = start_operator("")
    *_, last = states(platform, lambda w: {"Admitted", "PodsReady"} <= set(conditions(w)))
    assert conditions(last)["PodsReady"] == ("False", "WaitForStart")


def test_operator_with_disabled_waiting_reports_no_pods_ready_condition(
    start_operator: Callable[[str], tuple[UpProcess, OperatorRun]],
) -> None:
    platform, _ = start_operator(f"{HEAD}featureGates: {{DisableWaitForPodsReady: true}}\n")
    *_, last = states(platform, lambda w: conditions(w).get("Admitted") == ("True", "Admitted"))
    assert "PodsReady" not in conditions(last)


def test_platform_evicts_by_configured_pods_ready_timeout(exit_stack: ExitStack, tmp_path: Path) -> None:
    options = ("--config", str(write_configuration(tmp_path, LIMITED)), "--controllers", "*,-runtime")
    platform = exit_stack.enter_context(UpProcess(tmp_path, *IDLE, *options))
    one_job(platform)
    *_, last = states(platform, lambda w: conditions(w).get("Evicted") == ("True", "PodsReadyTimeout"))
    assert last["status"]["requeueState"]["count"] == 1


def test_platform_reports_pods_ready_condition(exit_stack: ExitStack, tmp_path: Path) -> None:
    platform = exit_stack.enter_context(
        UpProcess(tmp_path, *IDLE, "--config", str(write_configuration(tmp_path, HEAD)))
    )
    one_job(platform)
    *_, last = states(platform, lambda w: conditions(w).get("PodsReady") == ("True", "Started"))
    assert conditions(last)["Admitted"] == ("True", "Admitted")


@pytest.mark.parametrize("command", [("up", "--data-dir", "data"), ("operator",)])
def test_command_rejects_invalid_configuration_before_any_change(
    exit_stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_configuration(
        tmp_path, f"{HEAD}waitForPodsReady: {{enable: false}}\nmanageJobsWithoutQueueName: true\n"
    )
    child = exit_stack.enter_context(Child(*command, "--config", str(file)))
    assert child.ended() == 1
    assert (
        f"{file}:3: waitForPodsReady.enable: unknown field; v1beta2 does not have this field" in child.reported.read()
    )
    assert not (tmp_path / "data").exists()
