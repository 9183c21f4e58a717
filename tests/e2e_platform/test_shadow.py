"""A shadow of a platform without admission, with recorded decisions of upstream written to the platform."""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import kind_info
from batchyard.base.instant import SECOND
from batchyard.client.transport import object_path
from differential.recorded_scenarios import packed_cases
from differential.upstream_writes import Record, Upstream, read_case
from e2e_platform.kill_rounds import ask
from e2e_platform.operator_process import OperatorRun, ask_text, free_port, plain_kubeconfig
from e2e_platform.platform_process import UpProcess
from e2e_platform.snapshot_commands import batchyard

SPEED = 60
_RETRY_INTERVAL = 0.05  # seconds
_ATTEMPTS_MAX = 600
OPTIONS = ("--controllers", "*,-admission,-runtime")
QUEUE_MODEL = "/apis/ui.batchyard.dev/v1alpha1/queue?name=theirs"
DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "shadow.md"

#: The metadata that the server sets.
_OF_SERVER = ("uid", "resourceVersion", "creationTimestamp")


FAIR = {
    "metadata": {"name": "kueue-manager-config"},
    "data": {
        "controller_manager_config.yaml": "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"
        "fairSharing: {preemptionStrategies: [LessThanInitialShare]}\nadmissionFairSharing: {usageHalfLifeTime: 1h}\n"
    },
}


class HttpObjects:
    """Objects of an API server, which sets their uids."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, key: Key) -> Obj | None:
        code, result = ask(self._url, "GET", _path(key))
        return result if code == 200 else None

    def put(self, obj: Obj) -> None:
        info = kind_info(_kind(obj))
        key = Key(info.constant, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        known = self.get(key)
        kept = {} if known is None else {name: known["metadata"][name] for name in _OF_SERVER}
        given = {name: value for name, value in obj["metadata"].items() if name not in _OF_SERVER}
        sent = {**obj, "metadata": {**given, **kept}}
        if known is None:
            self._done(ask(self._url, "POST", object_path(info, info.storage_version, key.namespace), sent))
        elif "status" in obj:
            self._done(ask(self._url, "PUT", f"{_path(key)}/status", sent))
        else:
            self._done(ask(self._url, "PUT", _path(key), sent))

    def delete(self, key: Key) -> None:
        self._done(ask(self._url, "DELETE", _path(key)))

    def _done(self, answer: tuple[int, Any]) -> None:
        assert answer[0] in {200, 201}, answer


def _kind(obj: Obj) -> str:
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{obj['kind']}.{group}" if group else str(obj["kind"])


def _path(key: Key) -> str:
    info = kind_info(key.kind)
    return object_path(info, info.storage_version, key.namespace, key.name)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path, *OPTIONS, "--insecure-loopback", "--speed", f"{SPEED}x") as running:
        assert ask(running.url, "POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})[0] == 201
        yield running


def play(platform: UpProcess, name: str, left_out: str = "") -> None:
    """Replay the decisions of upstream; a Workload may be left pending."""
    scenario, log = read_case(name, *packed_cases()[name])
    kept: list[Record] = [record for record in log if record.get("workload") != left_out]
    start = ask(platform.url, "GET", "/batchyard/status")[1]["instant"]
    passed = 0
    for moment in Upstream(HttpObjects(platform.url), scenario, kept, start).moments():
        threading.Event().wait((moment.at - start - passed) / SECOND / SPEED)
        passed = moment.at - start
        moment.work()


def shadow(platform: UpProcess, *options: str) -> OperatorRun:
    folder = platform.kubeconfig.parent
    kubeconfig = plain_kubeconfig(folder, platform.url)
    return OperatorRun(kubeconfig, "--shadow", *options, printed=folder / "printed").wait_until("comparing with Kueue")


def reported(platform: UpProcess) -> list[dict[str, Any]]:
    """The output of a shadow, as soon as it exists."""
    for _ in range(_ATTEMPTS_MAX):
        text = (platform.kubeconfig.parent / "printed").read_text("utf-8")
        if text.endswith("\n"):
            return [json.loads(line) for line in text.splitlines()]
        threading.Event().wait(_RETRY_INTERVAL)
    raise AssertionError("it has told nothing")


def test_shadow_agrees_with_all_upstream_decisions(platform: UpProcess) -> None:
    with shadow(platform) as beside:
        play(platform, "single-1")
        assert beside.end() == 0
        (summary,) = reported(platform)
        assert summary["agreed"] == {"admission": 7, "preemption": 1}


def test_shadow_reports_workload_left_pending_and_exits_with_1(platform: UpProcess) -> None:
    _, log = read_case("single-1", *packed_cases()["single-1"])
    left_out = next(record["workload"] for record in log if record["event"] == "QuotaReserved")
    with shadow(platform, "--patience", "200ms") as beside:
        play(platform, "single-1", left_out)
        (of_it,) = [each for each in reported(platform) if each["workload"] == left_out]
        assert of_it["type"] == "NotAdmitted"
        assert of_it["predicted"]["decision"] == "admit"
        assert beside.end() == 1


QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: theirs}
spec: {namespaceSelector: {}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: default}
spec: {clusterQueue: theirs}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: waits, namespace: default}
spec: {queueName: jobs, podSets: [{name: main, count: 1, template: {spec: {containers: [{name: c, image: i}]}}}]}
"""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_page_of_shadow_shows_queues_of_another_kueue(tmp_path: Path) -> None:
    port = free_port()
    with (
        UpProcess(tmp_path, *OPTIONS) as running,
        OperatorRun(running.kubeconfig, "--shadow", "--port", str(port)).wait_until("comparing with Kueue") as beside,
    ):
        running.kubectl("create", "-f", "-", sent=QUEUES)
        running.kubectl(
            "create", "clusterrolebinding", "ann", "--clusterrole=cluster-admin", "--serviceaccount=default:ann"
        )
        running.kubectl("create", "serviceaccount", "ann")
        token = running.kubectl("create", "token", "ann").strip()
        assert (ask_text(port, "/ui/")[0], ask_text(port, QUEUE_MODEL)[0]) == (200, 401)
        for _ in range(_ATTEMPTS_MAX):
            code, text = ask_text(port, QUEUE_MODEL, token)
            if code == 200 and "waits" in text:
                break
            threading.Event().wait(_RETRY_INTERVAL)
        assert (code, "default/waits" in text or '"waits"' in text) == (200, True)
        assert beside.end() == 0


def test_shadow_uses_configuration_of_cluster(platform: UpProcess, tmp_path: Path) -> None:
    for path, obj in (
        ("namespaces", {"name": "kueue-system"}),
        ("namespaces/kueue-system/configmaps", FAIR["metadata"]),
    ):
        assert ask(platform.url, "POST", f"/api/v1/{path}", {"metadata": obj, "data": FAIR["data"]})[0] == 201
    kubeconfig = str(plain_kubeconfig(tmp_path, platform.url))
    done = batchyard("operator", "--shadow", "--for", "100ms", "--kubeconfig", kubeconfig)
    assert "Kueue's Configuration was read from ConfigMap kueue-manager-config of kueue-system" in done.stderr
    assert "not supported" not in done.stderr
    assert done.code == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_documented_permissions_suffice_for_shadow(tmp_path: Path) -> None:
    (rights,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    with UpProcess(tmp_path, *OPTIONS) as running:
        running.kubectl("create", "namespace", "batchyard")
        running.kubectl(
            "apply",
            "-f",
            "-",
            sent=rights.replace(
                "kind: ServiceAccount, name: shadow, namespace: batchyard",
                "kind: User, name: shadow, apiGroup: rbac.authorization.k8s.io",
            ),
        )
        assert batchyard("user", "shadow", "--data-dir", str(tmp_path)).code == 0
        kubeconfig = str(tmp_path / "users" / "shadow.kubeconfig")
        done = batchyard("operator", "--shadow", "--for", "100ms", "--kubeconfig", kubeconfig)
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["kind"] == "ShadowSummary"
        assert not re.search(r"\b40[13]\b", done.stderr)
