"""Operators of a platform: a standby takes over from the leader, and no decision is made twice."""

import json
import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e_platform.kill_rounds import PlainHttpClient, ask
from e2e_platform.operator_process import OperatorRun, ask_text, free_port, plain_kubeconfig
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_crashes import WORKLOADS, submitted

OPTIONS = ("--insecure-loopback", "--speed", "60x", "--controllers", "*,-admission")
#: Leases as short as whole seconds allow.
ELECTION = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "500ms"),
)
MODEL = "/apis/ui.batchyard.dev/v1alpha1/overview"
QUEUE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: TEAM}
spec: {clusterQueue: none}
"""
WORKLOAD = """---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: waits, namespace: team-a}
spec:
  queueName: jobs
  podSets:
  - name: main
    count: 1
    template:
      spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
"""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/batchyard"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path, *OPTIONS) as running:
        yield running


def operator(platform: UpProcess, *options: str) -> OperatorRun:
    kubeconfig = plain_kubeconfig(platform.kubeconfig.parent, platform.url)
    return OperatorRun(kubeconfig, "--controllers", "admission", *options)


def leading(platform: UpProcess, *options: str) -> OperatorRun:
    return operator(platform, *options).wait_until("runs admission")


def waiting(platform: UpProcess, *options: str) -> OperatorRun:
    return operator(platform, *options).wait_until("waiting to lead")


def submit(platform: UpProcess, numbers: Sequence[int]) -> None:
    """Create a queue of two CPUs if it does not exist, and Jobs of one CPU."""
    objects = list(submitted())
    for path, obj in [*objects[:3], *[objects[3 + number] for number in numbers]]:
        code, answer = ask(platform.url, "POST", path, obj)
        assert code == 201 or answer["reason"] == "AlreadyExists", answer


def finish(platform: UpProcess, count: int) -> None:
    """Wait until a number of Workloads has finished."""
    done = set()
    with PlainHttpClient(platform.url) as client:
        for event in client.lines(f"{WORKLOADS}?watch=1"):
            conditions = event["object"].get("status", {}).get("conditions", [])
            done |= {event["object"]["metadata"]["name"] for c in conditions if c["type"] == "Finished"}
            if len(done) >= count:
                return


def admissions(platform: UpProcess) -> list[int]:
    """How often each Workload got quota, counted in all its versions."""
    given: dict[str, list[bool]] = {}
    with PlainHttpClient(platform.url) as client:
        for event in client.lines(f"{WORKLOADS}?watch=1&resourceVersion=1&timeoutSeconds=1"):
            conditions = event["object"].get("status", {}).get("conditions", [])
            has_quota = any(c["type"] == "QuotaReserved" and c["status"] == "True" for c in conditions)
            given.setdefault(event["object"]["metadata"]["name"], [False]).append(has_quota)
    return [sum(now and not before for before, now in pairwise(states)) for states in given.values()]


def lease(platform: UpProcess) -> dict[str, Any]:
    spec: dict[str, Any] = ask(platform.url, "GET", LEASE)[1]["spec"]
    return spec


def test_standby_takes_over_from_killed_leader(platform: UpProcess) -> None:
    with leading(platform, *ELECTION) as leader, waiting(platform, *ELECTION) as standby:
        submit(platform, range(4))
        finish(platform, 2)
        leader.kill()
        standby.wait_until("runs admission", within=10)
        submit(platform, range(4, 6))
        finish(platform, 6)
        assert lease(platform)["leaseTransitions"] == 1
        assert standby.end() == 0
    assert admissions(platform) == [1] * 6


def test_suspended_leader_ends_without_further_writes(platform: UpProcess) -> None:
    with leading(platform, *ELECTION) as leader, waiting(platform, *ELECTION) as standby:
        submit(platform, range(3))
        leader.signal(signal.SIGSTOP)
        standby.wait_until("runs admission", within=10)
        submit(platform, range(3, 6))
        leader.signal(signal.SIGCONT)
        assert leader.ended() == 1
        assert "leader election lost" in leader.log()
        finish(platform, 6)
        assert standby.process.poll() is None
    assert admissions(platform) == [1] * 6


def test_terminated_leader_releases_lease_at_once(platform: UpProcess) -> None:
    with leading(platform) as leader, waiting(platform) as standby:
        assert leader.end() == 0
        standby.wait_until("runs admission", within=10)


def test_operator_serves_health_and_metrics(platform: UpProcess) -> None:
    port = free_port()
    with operator(platform, "--no-leader-elect", "--port", str(port)) as running:
        running.wait_until("runs admission")
        submit(platform, range(2))
        finish(platform, 2)
        assert ask_text(port, "/healthz") == (200, "ok")
        assert ask_text(port, "/readyz") == (200, "ok")
        code, text = ask_text(port, "/metrics")
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert code == 200
    assert figures['leader_election_master_status{name="batchyard"}'] == "1"
    assert int(figures['rest_client_requests_total{code="200",method="PATCH"}']) > 4
    assert int(figures['controller_runtime_reconcile_total{controller="scheduler",result="success"}']) > 0
    assert int(figures["batchyard_turns_total"]) > 0
    assert [figures[name] for name in figures if name.startswith("kueue_finished_workloads_total{")] == ["2"]


def test_page_shows_user_only_objects_that_user_may_list(tmp_path: Path) -> None:
    port, options = free_port(), ("--controllers", "admission", "--no-leader-elect")
    with (
        UpProcess(tmp_path, "--controllers", "*,-admission") as platform,
        OperatorRun(platform.kubeconfig, *options, "--port", str(port)) as running,
    ):
        running.wait_until("runs admission")
        for team in ("team-a", "team-b"):
            platform.kubectl("create", "namespace", team)
            platform.kubectl("create", "-f", "-", sent=QUEUE.replace("TEAM", team))
        platform.kubectl(
            "create", "rolebinding", "v", "-n", "team-a", "--clusterrole=view", "--serviceaccount=team-a:ann"
        )
        platform.kubectl("create", "serviceaccount", "ann", "-n", "team-a")
        token = platform.kubectl("create", "token", "ann", "-n", "team-a").strip()
        assert ask_text(port, "/ui/")[0] == 200
        assert ask_text(port, MODEL)[0] == ask_text(port, MODEL, f"{token}x")[0] == 401
        code, text = ask_text(port, MODEL, token)
        assert code == 200
        assert "team-b" not in text
        assert [queue["namespace"] for queue in json.loads(text)["model"]["localQueues"]] == ["team-a"]


def token_of_new_account(platform: UpProcess, name: str) -> str:
    platform.kubectl("create", "serviceaccount", name, "-n", "team-a")
    return platform.kubectl("create", "token", name, "-n", "team-a").strip()


def test_page_explains_pending_workload_to_users_that_may_list_it(tmp_path: Path) -> None:
    port, options = free_port(), ("--controllers", "admission", "--no-leader-elect")
    with (
        UpProcess(tmp_path, "--controllers", "*,-admission") as platform,
        OperatorRun(platform.kubeconfig, *options, "--port", str(port)) as running,
    ):
        running.wait_until("runs admission")
        for team in ("team-a", "team-b"):
            platform.kubectl("create", "namespace", team)
        platform.kubectl("create", "-f", "-", sent=QUEUE.replace("TEAM", "team-a") + WORKLOAD)
        tokens = {user: token_of_new_account(platform, user) for user in ("ann", "bob")}
        for team in ("team-a", "team-b"):
            role = ("v", "-n", team, "--clusterrole=view", "--serviceaccount=team-a:bob")
            platform.kubectl("create", "rolebinding", *role)
        path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-a/workloads/waits/why"
        assert ask_text(port, path)[0] == 401
        code, text = ask_text(port, path, tokens["ann"])
        assert (code, json.loads(text)["reason"]) == (403, "Forbidden")
        code, text = ask_text(port, path, tokens["bob"])
        explanation = json.loads(text)
        assert (code, explanation["kind"]) == (200, "Explanation")
        assert "none" in explanation["summary"], "the ClusterQueue does not exist"
        assert ask_text(port, path.replace("team-a", "team-b"), tokens["bob"])[0] == 404


def test_operator_connects_with_tls_client_certificate(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--controllers", "*,-jobset") as platform:
        with OperatorRun(platform.kubeconfig, "--controllers", "jobset") as running:
            running.wait_until("runs jobset")
            assert running.end() == 0
        assert platform.end() == 0


@pytest.mark.parametrize("options", [(), ("--shadow",)])
def test_operator_waiting_for_credentials_ends_on_signal(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "plugin").write_text("#!/bin/sh\necho waiting for somebody >&2\nexec sleep 60\n")
    (tmp_path / "plugin").chmod(0o700)
    kubeconfig = plain_kubeconfig(tmp_path, "http://127.0.0.1:1")
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
    config = yaml.safe_load(kubeconfig.read_text()) | {"users": [{"name": "slow", "user": user}]}
    config["contexts"][0]["context"]["user"] = "slow"
    kubeconfig.write_text(yaml.safe_dump(config))
    with OperatorRun(kubeconfig, *options) as running:
        assert running.wait_until("waiting for somebody").end() == 0
