"""API Priority and Fairness with kubectl and curl."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None or shutil.which("curl") is None, reason="there is no kubectl or curl here"
)

CLOSED = """
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: closed}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: robots}
spec:
  priorityLevelConfiguration: {name: closed}
  matchingPrecedence: 200
  distinguisherMethod: {type: ByUser}
  rules:
    - subjects: [{kind: User, user: {name: robot}}]
      resourceRules: [{verbs: [list], apiGroups: [""], resources: [configmaps], namespaces: ["*"]}]
"""
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform where the user robot may read objects."""
    with UpProcess(tmp_path_factory.mktemp("platform")) as running:
        running.kubectl("create", "clusterrolebinding", "robot", "--clusterrole=view", "--user=robot")
        running.kubectl("create", "clusterrolebinding", "r2", "--clusterrole=view", "--serviceaccount=default:robot")
        running.kubectl("create", "serviceaccount", "robot")
        yield running


def curl(platform: UpProcess, path: str, *options: str) -> tuple[str, dict[str, str]]:
    """The status code and the headers of a response to curl with the token of a ServiceAccount."""
    token = platform.kubectl("create", "token", "robot").strip()
    config = json.loads(platform.kubectl("config", "view", "--raw", "-o", "json"))
    server = config["clusters"][0]["cluster"]["server"]
    arguments = ["curl", "-sk", "-D", "-", "-o", "/dev/null", "--max-time", "5", *options]
    authorization = ["-H", f"Authorization: Bearer {token}"]
    text = subprocess.check_output([*arguments, *authorization, f"{server}{path}"], text=True)
    head, *lines = text.splitlines()
    return head.split()[1], dict(line.lower().split(": ", 1) for line in lines if ": " in line)


def uid_of(platform: UpProcess, kind: str, name: str) -> str:
    return platform.kubectl("get", kind, name, "-o", "jsonpath={.metadata.uid}")


def test_provided_objects_exist(platform: UpProcess) -> None:
    schemas = platform.kubectl("get", "flowschemas", "--no-headers").splitlines()
    levels = platform.kubectl("get", "prioritylevelconfigurations", "--no-headers").splitlines()
    assert (len(schemas), len(levels)) == (11, 8)
    assert re.fullmatch(r"global-default +global-default +9900 +ByUser +\S+ +False", schemas[2])
    assert re.fullmatch(r"global-default +Limited +20 +128 +6 +50 +\S+", levels[2])


def test_responses_and_watches_name_their_schema_and_level(platform: UpProcess) -> None:
    for path in (CONFIG_MAPS, f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1"):
        code, headers = curl(platform, path)
        assert code == "200"
        uid = uid_of(platform, "flowschema", "service-accounts")
        assert headers["x-kubernetes-pf-flowschema-uid"] == uid
        uid = uid_of(platform, "prioritylevelconfiguration", "workload-low")
        assert headers["x-kubernetes-pf-prioritylevel-uid"] == uid


def test_excess_requests_are_rejected(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=CLOSED)
    schema = json.loads(platform.kubectl("get", "flowschema", "robots", "-o", "json"))
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": "robot", "namespace": "default"}}
    schema["spec"]["rules"][0]["subjects"].append(account)
    platform.kubectl("replace", "-f", "-", sent=json.dumps(schema))
    code, headers = curl(platform, CONFIG_MAPS)
    assert (code, headers["retry-after"]) == ("429", "1")
    assert headers["x-kubernetes-pf-flowschema-uid"] == uid_of(platform, "flowschema", "robots")
    assert curl(platform, "/api/v1/namespaces/default/pods")[0] == "200"
    assert curl(platform, "/healthz")[0] == "200"
    metrics = platform.kubectl("get", "--raw", "/metrics")
    labels = '{priority_level="closed",flow_schema="robots",reason="concurrency-limit"}'
    assert f"apiserver_flowcontrol_rejected_requests_total{labels} 1" in metrics


def test_schema_without_level_is_ignored(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=CLOSED)
    platform.kubectl("delete", "prioritylevelconfiguration", "closed")
    row = platform.kubectl("get", "flowschema", "robots", "--no-headers")
    assert row.split()[-1] == "True"
    assert platform.kubectl("get", "configmaps", "--as=robot", "--no-headers").startswith("kube-root-ca.crt")


def test_mandatory_objects_are_kept(platform: UpProcess) -> None:
    platform.kubectl("delete", "flowschema", "catch-all")
    assert platform.kubectl("get", "flowschema", "catch-all", "--no-headers").split()[2] == "10000"
    patch = '{"spec": {"matchingPrecedence": 9}}'
    failure = platform.kubectl("patch", "flowschema", "catch-all", "--type=merge", "-p", patch, fails=True)
    assert "spec of 'catch-all' must equal the fixed value" in failure
