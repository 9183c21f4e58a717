"""How a pod calls itself."""

import pytest

import make
from batchyard.runtime.local.errors import InputError
from batchyard.runtime.local.hostname import Hostname, hostname_of, hosts_file
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


def test_a_pod_knows_its_own_names_and_those_it_asks_for() -> None:
    of = pod(hostAliases=[{"ip": "10.0.0.9", "hostnames": ["db", "db.local"]}])
    told = hosts_file(of, Hostname("job-0", DOMAIN), ["10.77.0.5", "fd00::5"], "")
    own = f"10.77.0.5\tjob-0.{DOMAIN}\tjob-0\nfd00::5\tjob-0.{DOMAIN}\tjob-0\n"
    assert told.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost")
    assert told.endswith(f"{own}\n# Entries added by HostAliases.\n10.0.0.9\tdb\tdb.local\n")
    assert hosts_file(pod(), Hostname(f"job-0.{DOMAIN}", DOMAIN), ["10.77.0.5"], "").endswith(
        own.splitlines()[0] + "\n"
    )
    assert hosts_file(pod(), Hostname("pod", ""), ["10.77.0.5"], "").endswith("\n10.77.0.5\tpod\n")


def test_who_uses_the_machines_network_knows_what_the_machine_knows() -> None:
    told = hosts_file(pod(hostNetwork=True), Hostname("node", ""), ["192.168.0.1"], "192.168.0.1\tnode\n")
    assert told == "# Kubernetes-managed hosts file (host network).\n192.168.0.1\tnode\n"
