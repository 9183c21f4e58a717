"""Admission policies with kubectl: a denial, a mutation, parameters, and a restart."""

import shutil
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

POLICIES = str(Path(__file__).parent / "admission_policies.yaml")

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def job(name: str, parallelism: int = 1, queue: str = "") -> str:
    labels = f'"labels": {{"kueue.x-k8s.io/queue-name": "{queue}"}}, ' if queue else ""
    spec = '{"restartPolicy": "Never", "containers": [{"name": "a", "image": "busybox"}]}'
    return (
        f'{{"apiVersion": "batch/v1", "kind": "Job", "metadata": {{{labels}"name": "{name}", "namespace": "default"}}, '
        f'"spec": {{"suspend": true, "parallelism": {parallelism}, "template": {{"spec": {spec}}}}}}}'
    )


def test_policies_deny_and_complete_jobs(tmp_path: Path) -> None:
    with UpProcess(tmp_path) as first:
        first.kubectl("apply", "-f", POLICIES)
        denied = first.kubectl("create", "-f", "-", sent=job("free"), fails=True)
        text = "ValidatingAdmissionPolicy 'queue-required' with binding 'queue-required' denied request: "
        assert f"{text}Job free in namespace default must name a queue" in denied
        first.kubectl("create", "-f", "-", sent=job("queued", queue="team"))
        assert first.kubectl("get", "job/queued", "-o", "jsonpath={.spec.backoffLimit}") == "0"
        columns = first.kubectl("get", "validatingadmissionpolicy/parallelism-limit").splitlines()
        assert columns[0].split() == ["NAME", "VALIDATIONS", "PARAMKIND", "AGE"]
        assert columns[1].split()[:3] == ["parallelism-limit", "1", "v1/ConfigMap"]
        first.kill()
    with UpProcess(tmp_path) as second:
        denied = second.kubectl("create", "-f", "-", sent=job("wide", 9, "team"), fails=True)
        assert "spec.parallelism must be at most 4" in denied
        second.kubectl("delete", "-f", POLICIES)
        second.kubectl("create", "-f", "-", sent=job("wide", 9))
        assert second.end() == 0
