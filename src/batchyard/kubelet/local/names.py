"""Names of Services and pods: DNS records, hostnames, and the /etc/hosts of pods.

    SERVICE.NAMESPACE.svc.cluster.local             resolves to the cluster IP of the Service, or to its ready pods
    HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local    resolves to the pod with this hostname and subdomain
    10-77-0-5.NAMESPACE.pod.cluster.local           resolves to 10.77.0.5

A Service with publishNotReadyAddresses includes its unready pods that have an address and have not ended.
Sources: the DNS specification of Kubernetes (github.com/kubernetes/dns docs/specification.md),
pkg/controller/endpointslice.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address
from math import inf
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError, quote_like_go

# Hostnames of pods, and their hosts files.
#
# Source: pkg/kubelet/kubelet_pods.go (GeneratePodHostNameAndDomain, ensureHostsFile), pkg/kubelet/util
# (GetNodenameForKernel).


_HOSTNAME_LENGTH_MAX: Final = 63
_FULL_HOSTNAME_LENGTH_MAX: Final = 64
_HOSTS_HEADER: Final = "# Kubernetes-managed hosts file"
_LOCALHOST_ENTRIES: Final = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


class Hostname(NamedTuple):
    """The hostname of a pod and its DNS domain."""

    #: The pod's hostname, also in the variable HOSTNAME.
    name: str
    #: The domain in the pod's /etc/hosts entry; '' if it has none.
    domain: str

    @property
    def names(self) -> Sequence[str]:
        """All names in the pod's own /etc/hosts entry, the longest first."""
        if not self.domain:
            return [self.name]
        short_name = self.name.removesuffix(f".{self.domain}")
        return [f"{short_name}.{self.domain}", short_name]


def hostname_of(pod: Obj, cluster_domain: str) -> Hostname:
    """Return a pod's hostname and domain. Raises InputError if setHostnameAsFQDN is set and the FQDN is too long."""
    metadata, spec = pod["metadata"], pod["spec"]
    if spec.get("hostnameOverride"):
        return Hostname(_truncate_hostname(spec["hostnameOverride"]), "")
    name = _truncate_hostname(spec.get("hostname") or metadata["name"])
    if not spec.get("subdomain"):
        return Hostname(name, "")
    domain = f"{spec['subdomain']}.{metadata.get('namespace') or ''}.svc.{cluster_domain}"
    if not spec.get("setHostnameAsFQDN"):
        return Hostname(name, domain)
    full_hostname = f"{name}.{domain}"
    if len(full_hostname) > _FULL_HOSTNAME_LENGTH_MAX:
        raise InputError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full_hostname} is too long"
            f" ({_FULL_HOSTNAME_LENGTH_MAX} characters is the max, {len(full_hostname)} characters requested)"
        )
    return Hostname(full_hostname, domain)


def hosts_file(
    names: Sequence[str], address: str, host_aliases: Sequence[Mapping[str, Any]], machine_hosts: str | None
) -> str:
    """Return the text of a pod's /etc/hosts.

    `names` are the pod's own names for `address`; if `address` is empty, the pod has no entry. `machine_hosts` is the
    text of the machine's own file for a pod on the host network, and None for other pods.
    """
    lines = ["\t".join([alias["ip"], *(alias.get("hostnames") or ())]) + "\n" for alias in host_aliases]
    alias_entries = "".join(["\n# Entries added by HostAliases.\n", *lines]) if lines else ""
    if machine_hosts is not None:
        return f"{_HOSTS_HEADER} (host network).\n{machine_hosts}{alias_entries}"
    pod_entry = "\t".join([address, *names]) + "\n" if address else ""
    return f"{_HOSTS_HEADER}.\n{_LOCALHOST_ENTRIES}{pod_entry}{alias_entries}"


def quote_pod_name(pod: Obj) -> str:
    """Format a pod's name, namespace and uid, in quotes, as messages of the kubelet do."""
    metadata = pod["metadata"]
    return quote_like_go(f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata.get('uid') or ''})")


def _truncate_hostname(name: str) -> str:
    return name if len(name) <= _HOSTNAME_LENGTH_MAX else name[:_HOSTNAME_LENGTH_MAX].rstrip("-.")


_POD_DNS_LABEL_COUNT: Final = 2
_SERVICE_RECORD_TYPE: Final = "svc"
_POD_RECORD_TYPE: Final = "pod"
_REVERSE_LOOKUP_SUFFIX: Final = ".in-addr.arpa"
_POD_NAMES_LIFETIME: Final = 1.0  # seconds


def resolve_dns_name(name: str, domain: str, reader: Reader) -> Sequence[str] | None:
    """Return the addresses of a lowercase DNS name in the cluster `domain`; None if the name does not exist.

    The result is empty for a name without addresses, such as that of a Service without ready pods.
    """
    name_in_domain, separator, _ = name.rpartition(f".{domain}")
    if not separator or not name.endswith(f".{domain}"):
        return None
    *name_labels, record_type = name_in_domain.split(".")
    if record_type == _POD_RECORD_TYPE and len(name_labels) == _POD_DNS_LABEL_COUNT:
        return _parse_dashed_address(name_labels[0])
    if record_type != _SERVICE_RECORD_TYPE or not 2 <= len(name_labels) <= 3:
        return [] if record_type in {_POD_RECORD_TYPE, _SERVICE_RECORD_TYPE} and not name_labels else None
    *hostname, service_name, namespace = name_labels
    service_object = reader.get(Key(scheme.SERVICE, namespace, service_name))
    if service_object is None:
        return None
    pods = _service_pods(service_object, reader)
    cluster_ip = service_object["spec"].get("clusterIP") or ""
    if not hostname and cluster_ip not in {"", "None"}:
        return [cluster_ip]
    if not hostname:
        return [_pod_ip(pod) for pod in pods]
    return [_pod_ip(pod) for pod in pods if _has_hostname(pod, hostname[0], service_name)] or None


class PodNames:
    """The pods that have a DNS name, by address; a new one is known after a second."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._keys: dict[str, list[Key]] = {}
        self._expires_at = -inf

    def resolve_address(self, name: str, domain: str, now: float) -> Sequence[str] | None:
        """Return a pod's DNS name, in a list, for the name of a reverse lookup such as `5.0.77.10.in-addr.arpa`.

        A pod has a DNS name if it sets a hostname and a subdomain, and the subdomain is an existing Service. None if no
        such pod has the address, or if `name` is not that of a reverse lookup.
        """
        if not name.endswith(_REVERSE_LOOKUP_SUFFIX):
            return None
        if now >= self._expires_at:
            self._expires_at, self._keys = now + _POD_NAMES_LIFETIME, {}
            for pod in filter(_is_named, self._reader.list(scheme.POD)):
                self._keys.setdefault(_pod_ip(pod), []).append(key_of(pod))
        address = ".".join(reversed(name.removesuffix(_REVERSE_LOOKUP_SUFFIX).split(".")))
        for key in self._keys.get(address, ()):
            current = self._reader.get(key)
            if current is None or not _is_named(current) or _pod_ip(current) != address:
                continue
            subdomain = current["spec"]["subdomain"]
            if self._reader.get(Key(scheme.SERVICE, key.namespace, subdomain)) is not None:
                return [f"{current['spec']['hostname']}.{subdomain}.{key.namespace}.{_SERVICE_RECORD_TYPE}.{domain}"]
        return None


def _is_named(pod: Obj) -> bool:
    spec = pod["spec"]
    return bool(spec.get("hostname") and spec.get("subdomain") and _pod_ip(pod))


def _service_pods(service: Obj, reader: Reader) -> Iterator[Obj]:
    spec = service["spec"]
    selector = spec.get("selector")
    if not selector:
        return
    for pod in reader.list(scheme.POD, service["metadata"]["namespace"]):
        if not _matches_selector(pod, selector) or is_terminal(pod) or not _pod_ip(pod):
            continue
        if spec.get("publishNotReadyAddresses") or (is_ready(pod) and not is_terminating(pod)):
            yield pod


def _matches_selector(pod: Obj, selector: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def _has_hostname(pod: Obj, hostname: str, subdomain: str) -> bool:
    spec = pod["spec"]
    return bool(spec.get("hostname") == hostname and spec.get("subdomain") == subdomain)


def _pod_ip(pod: Obj) -> str:
    return (pod.get("status") or {}).get("podIP") or ""


def _parse_dashed_address(text: str) -> Sequence[str] | None:
    try:
        return [str(IPv4Address(text.replace("-", ".")))]
    except AddressValueError:
        return None
