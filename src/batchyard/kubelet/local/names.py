"""DNS names of Services and pods, hostnames of pods, and their /etc/hosts.

    SERVICE.NAMESPACE.svc.cluster.local             resolves to the addresses of the Service's ready pods
    HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local    resolves to the pod with this hostname and subdomain
    10-77-0-5.NAMESPACE.pod.cluster.local           resolves to 10.77.0.5

A Service with publishNotReadyAddresses includes every pod that has an address. There is no kube-proxy: the name of a
Service with a cluster IP also resolves to its pods, which clients reach at the pods' own ports. Sources: the DNS
specification of Kubernetes (github.com/kubernetes/dns docs/specification.md), pkg/controller/endpointslice.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError, quoted

# --- hostname ---
# Hostnames of pods, and their hosts files.
#
# Source: pkg/kubelet/kubelet_pods.go (GeneratePodHostNameAndDomain, ensureHostsFile), pkg/kubelet/util
# (GetNodenameForKernel).


_LENGTH_MAX: Final = 63
_FULL_LENGTH_MAX: Final = 64
_HEADER: Final = "# Kubernetes-managed hosts file"
_LOCAL: Final = """\
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


class Hostname(NamedTuple):
    """The hostname and domain of a pod."""

    #: The pod's hostname, also in the variable HOSTNAME.
    name: str
    #: The domain in the pod's /etc/hosts entry; '' if it has none.
    domain: str

    @property
    def names(self) -> Sequence[str]:
        """All hostnames for the pod's /etc/hosts entry, the longest first."""
        if not self.domain:
            return [self.name]
        short = self.name.removesuffix(f".{self.domain}")
        return [f"{short}.{self.domain}", short]


def hostname_of(pod: Obj, cluster_domain: str) -> Hostname:
    """Return the hostname and domain of a pod. InputError if the pod's FQDN is too long for a hostname."""
    metadata, spec = pod["metadata"], pod["spec"]
    if spec.get("hostnameOverride"):
        return Hostname(_cut(spec["hostnameOverride"]), "")
    name = _cut(spec.get("hostname") or metadata["name"])
    if not spec.get("subdomain"):
        return Hostname(name, "")
    domain = f"{spec['subdomain']}.{metadata.get('namespace') or ''}.svc.{cluster_domain}"
    if not spec.get("setHostnameAsFQDN"):
        return Hostname(name, domain)
    full = f"{name}.{domain}"
    if len(full) > _FULL_LENGTH_MAX:
        raise InputError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long"
            f" ({_FULL_LENGTH_MAX} characters is the max, {len(full)} characters requested)"
        )
    return Hostname(full, domain)


def hosts_file(names: Sequence[str], address: str, aliases: Sequence[Mapping[str, Any]], of_machine: str | None) -> str:
    """Return a pod's /etc/hosts; `machine_hosts` is the machine's own file, included for pods on the host network."""
    lines = ["\t".join([alias["ip"], *(alias.get("hostnames") or ())]) + "\n" for alias in aliases]
    added = "".join(["\n# Entries added by HostAliases.\n", *lines]) if lines else ""
    if of_machine is not None:
        return f"{_HEADER} (host network).\n{of_machine}{added}"
    own = "\t".join([address, *names]) + "\n" if address else ""
    return f"{_HEADER}.\n{_LOCAL}{own}{added}"


def pod_name(pod: Obj) -> str:
    """Format a pod's name, namespace and uid as in messages of the kubelet, in quotes."""
    metadata = pod["metadata"]
    return quoted(f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata.get('uid') or ''})")


def _cut(name: str) -> str:
    return name if len(name) <= _LENGTH_MAX else name[:_LENGTH_MAX].rstrip("-.")


_POD_PARTS: Final = 2
_SERVICE: Final = "svc"
_POD: Final = "pod"
_REVERSE: Final = ".in-addr.arpa"


def addresses(name: str, domain: str, reader: Reader) -> Sequence[str] | None:
    """Return the addresses of a DNS name in lowercase; None if the name does not exist."""
    rest, dot, _ = name.rpartition(f".{domain}")
    if not dot or not name.endswith(f".{domain}"):
        return None
    *parts, kind = rest.split(".")
    if kind == _POD and len(parts) == _POD_PARTS:
        return _written_out(parts[0])
    if kind != _SERVICE or not 2 <= len(parts) <= 3:
        return [] if kind in {_POD, _SERVICE} and not parts else None
    *hostname, service, namespace = parts
    found = reader.get(Key(scheme.SERVICE, namespace, service))
    if found is None:
        return None
    pods = _pods(found, reader)
    own = found["spec"].get("clusterIP") or ""
    if not hostname and not found["spec"].get("selector") and own not in {"", "None"}:
        return [own]  # such as the API's Service, at whose address the server itself listens
    if not hostname:
        return [_address(pod) for pod in pods]
    return [_address(pod) for pod in pods if _calls_itself(pod, hostname[0], service)] or None


def reverse(name: str, domain: str, reader: Reader) -> Sequence[str] | None:
    """Return the DNS names of an address given as `5.0.77.10.in-addr.arpa`; None if it has none."""
    if not name.endswith(_REVERSE):
        return None
    address = ".".join(reversed(name.removesuffix(_REVERSE).split(".")))
    for pod in reader.list(scheme.POD):
        spec, metadata = pod["spec"], pod["metadata"]
        if (pod.get("status") or {}).get("podIP") != address or not spec.get("hostname") or not spec.get("subdomain"):
            continue
        if reader.get(Key(scheme.SERVICE, metadata["namespace"], spec["subdomain"])) is not None:
            return [f"{spec['hostname']}.{spec['subdomain']}.{metadata['namespace']}.{_SERVICE}.{domain}"]
    return None


def _pods(service: Obj, reader: Reader) -> Iterator[Obj]:
    """Yield the pods that a Service's DNS name resolves to."""
    spec = service["spec"]
    selector = spec.get("selector")
    if not selector:
        return
    for pod in reader.list(scheme.POD, service["metadata"]["namespace"]):
        if not _is_chosen(pod, selector) or is_terminal(pod) or not _address(pod):
            continue
        if spec.get("publishNotReadyAddresses") or (is_ready(pod) and not is_terminating(pod)):
            yield pod


def _is_chosen(pod: Obj, selector: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def _calls_itself(pod: Obj, hostname: str, subdomain: str) -> bool:
    spec = pod["spec"]
    return bool(spec.get("hostname") == hostname and spec.get("subdomain") == subdomain)


def _address(pod: Obj) -> str:
    return (pod.get("status") or {}).get("podIP") or ""


def _written_out(text: str) -> Sequence[str] | None:
    """Parse the address in a DNS label such as `10-77-0-5`; None if it is invalid."""
    try:
        return [str(IPv4Address(text.replace("-", ".")))]
    except AddressValueError:
        return None
