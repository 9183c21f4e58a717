"""Clients in pods reach the API as in any cluster: by variables, a token and a certificate."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import local_platform, script, terminated_state, wait_for
from e2e_platform.platform_process import UpProcess

_KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(
    _KUBECTL is None or not str(Path(_KUBECTL).resolve()).startswith("/usr/"), reason="there is no kubectl in /usr"
)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform in which the ServiceAccount of pods may read pods."""
    with local_platform(tmp_path_factory.mktemp("platform"), "--host-network") as started:
        may = ("--clusterrole=view", "--serviceaccount=default:default", "--namespace=default")
        started.kubectl("create", "rolebinding", "reads", *may)
        yield started


def output_of_script(platform: UpProcess, name: str, text: str, **spec: object) -> list[str]:
    """The output lines of a script that succeeds in a pod."""
    platform.kubectl("create", "-f", "-", sent=script(name, text, **spec))
    wait_for(platform, name, "Succeeded")
    return platform.kubectl("logs", name).splitlines()


def test_client_in_pod_reaches_api(platform: UpProcess) -> None:
    result = output_of_script(
        platform, "reads", "kubectl get pod reads -o jsonpath={.status.phase} && echo $KUBERNETES_PORT"
    )
    service = platform.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    host = "127.0.0.1" if service == "None" else service
    assert result[0].startswith(f"Runningtcp://{host}:")


def test_client_in_pod_has_permissions_of_its_service_account_only(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("writes", "kubectl delete pod writes"))
    wait_for(platform, "writes", "Failed")
    assert "Forbidden" in platform.kubectl("logs", "writes")
    assert 'User "system:serviceaccount:default:default" cannot delete' in platform.kubectl("logs", "writes")
    assert terminated_state(platform, "writes")["exitCode"] == 1


def test_client_in_pod_verifies_api_certificate_by_service_name(platform: UpProcess) -> None:
    if platform.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") == "None":
        pytest.skip("pods have no network of their own here")
    mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
    known = f"--certificate-authority {mounted}/ca.crt --token $(cat {mounted}/token)"
    ask = f"kubectl --server https://kubernetes.default.svc {known} get --raw /readyz"
    assert output_of_script(platform, "named", ask) == ["ok"]


def test_host_network_pod_reaches_api_on_loopback(platform: UpProcess) -> None:
    ask = "kubectl get pod shares -o jsonpath={.metadata.name} && echo :$KUBERNETES_SERVICE_HOST"
    assert output_of_script(platform, "shares", ask, hostNetwork=True) == ["shares:127.0.0.1"]
