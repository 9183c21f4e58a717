"""How a pod calls itself."""

import pytest

import make
from batchyard.runtime.local.errors import InputError
from batchyard.runtime.local.hostname import Hostname, hostname_of
from unit.runtime.local.local_make import pod

DOMAIN = "workers.team.svc.cluster.local"


def test_a_pod_is_called_by_its_name_or_as_it_says() -> None:
    assert hostname_of(pod(), "cluster.local") == Hostname("pod", "")
    assert hostname_of(pod(hostname="job-0", subdomain="workers"), "cluster.local") == Hostname("job-0", DOMAIN)
    assert hostname_of(pod(hostnameOverride="a.b", subdomain="workers"), "cluster.local") == Hostname("a.b", "")


def test_a_long_name_is_cut() -> None:
    named = {**pod(), "metadata": make.metadata("a" * 62 + "-" + "b" * 9)}
    assert hostname_of(named, "cluster.local").name == "a" * 62


def test_a_pod_may_call_itself_by_its_full_name_if_that_is_short() -> None:
    of = pod(hostname="job-0", subdomain="workers", setHostnameAsFQDN=True)
    assert hostname_of(of, "cluster.local") == Hostname(f"job-0.{DOMAIN}", DOMAIN)
    with pytest.raises(InputError, match=r"is too long \(64 characters is the max, 70 characters requested\)"):
        hostname_of(pod(hostname="j" * 39, subdomain="workers", setHostnameAsFQDN=True), "cluster.local")
