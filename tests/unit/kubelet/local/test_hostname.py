"""The hostname and the hosts file of a pod."""

import pytest

import make
from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.local.names import Hostname, hostname_of, hosts_file
from unit.kubelet.local.local_make import pod

DOMAIN = "workers.team.svc.cluster.local"


def test_hostname_is_pod_name_or_set_by_spec() -> None:
    assert hostname_of(pod(), "cluster.local") == Hostname("pod", "")
    assert hostname_of(pod(hostname="job-0", subdomain="workers"), "cluster.local") == Hostname("job-0", DOMAIN)
    assert hostname_of(pod(hostnameOverride="a.b", subdomain="workers"), "cluster.local") == Hostname("a.b", "")


def test_long_hostname_is_truncated() -> None:
    named = {**pod(), "metadata": make.metadata("a" * 62 + "-" + "b" * 9)}
    assert hostname_of(named, "cluster.local").name == "a" * 62


def test_fqdn_hostname_is_rejected_when_too_long() -> None:
    of = pod(hostname="job-0", subdomain="workers", setHostnameAsFQDN=True)
    assert hostname_of(of, "cluster.local") == Hostname(f"job-0.{DOMAIN}", DOMAIN)
    with pytest.raises(InputError, match=r"is too long \(64 characters is the max, 70 characters requested\)"):
        hostname_of(pod(hostname="j" * 39, subdomain="workers", setHostnameAsFQDN=True), "cluster.local")


def test_hosts_file_lists_pod_names_and_host_aliases() -> None:
    names = Hostname("job-0", DOMAIN).names
    reported = hosts_file(names, "10.77.0.5", [{"ip": "10.0.0.9", "hostnames": ["db", "db.local"]}], None)
    own = f"10.77.0.5\tjob-0.{DOMAIN}\tjob-0\n"
    assert reported.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost")
    assert reported.endswith(f"{own}\n# Entries added by HostAliases.\n10.0.0.9\tdb\tdb.local\n")


def test_hosts_file_lists_longest_name_first() -> None:
    assert Hostname(f"job-0.{DOMAIN}", DOMAIN).names == [f"job-0.{DOMAIN}", "job-0"]
    assert hosts_file(Hostname("pod", "").names, "10.77.0.5", [], None).endswith("\n10.77.0.5\tpod\n")


def test_hosts_file_on_host_network_keeps_entries_of_node() -> None:
    reported = hosts_file(["node"], "", [], "192.168.0.1\tnode\n")
    assert reported == "# Kubernetes-managed hosts file (host network).\n192.168.0.1\tnode\n"
