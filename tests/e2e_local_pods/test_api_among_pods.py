"""Clients in pods, which find the API as within any cluster: by variables, a token and a certificate."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_local_pods.node import ended, local_platform, script, wait_for
from e2e_platform.running import Running

_KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(
    _KUBECTL is None or not str(Path(_KUBECTL).resolve()).startswith("/usr/"), reason="there is no kubectl in /usr"
)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A platform in which the ServiceAccount of pods may read pods."""
    with local_platform(tmp_path_factory.mktemp("platform"), "--host-network") as started:
        may = ("--clusterrole=view", "--serviceaccount=default:default", "--namespace=default")
        started.kubectl("create", "rolebinding", "reads", *may)
        yield started


def said_in(platform: Running, name: str, text: str, **spec: object) -> list[str]:
    """What a script in a pod writes, which succeeds."""
    platform.kubectl("create", "-f", "-", sent=script(name, text, **spec))
    wait_for(platform, name, "Succeeded")
    return platform.kubectl("logs", name).splitlines()


def test_a_client_in_a_pod_finds_the_api(platform: Running) -> None:
    found = said_in(platform, "reads", "kubectl get pod reads -o jsonpath={.status.phase} && echo $KUBERNETES_PORT")
    service = platform.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    host = "127.0.0.1" if service == "None" else service
    assert found[0].startswith(f"Runningtcp://{host}:")


def test_it_may_do_what_its_service_account_may_and_no_more(platform: Running) -> None:
    platform.kubectl("create", "-f", "-", sent=script("writes", "kubectl delete pod writes"))
    wait_for(platform, "writes", "Failed")
    assert "Forbidden" in platform.kubectl("logs", "writes")
    assert 'User "system:serviceaccount:default:default" cannot delete' in platform.kubectl("logs", "writes")
    assert ended(platform, "writes")["exitCode"] == 1


def test_the_api_has_its_name_there_and_the_certificate_bears_it(platform: Running) -> None:
    if platform.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") == "None":
        pytest.skip("pods have no network of their own here")
    mounted = "/var/run/secrets/kubernetes.io/serviceaccount"
    known = f"--certificate-authority {mounted}/ca.crt --token $(cat {mounted}/token)"
    ask = f"kubectl --server https://kubernetes.default.svc {known} get --raw /readyz"
    assert said_in(platform, "named", ask) == ["ok"]


def test_who_uses_the_nodes_network_reaches_it_there(platform: Running) -> None:
    ask = "kubectl get pod shares -o jsonpath={.metadata.name} && echo :$KUBERNETES_SERVICE_HOST"
    assert said_in(platform, "shares", ask, hostNetwork=True) == ["shares:127.0.0.1"]
