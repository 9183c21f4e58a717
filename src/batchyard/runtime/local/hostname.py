"""How a pod calls itself, and the names it knows without asking.

Source: pkg/kubelet/kubelet_pods.go (GeneratePodHostNameAndDomain, ensureHostsFile), pkg/kubelet/util
(GetNodenameForKernel).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.runtime.local.errors import InputError
from batchyard.runtime.local.quoting import quoted

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
    """The names of a pod."""

    #: What it calls itself, also in HOSTNAME.
    name: str
    #: The domain of its name in /etc/hosts; '' if it has none.
    domain: str

    @property
    def names(self) -> Sequence[str]:
        """All of them, the longest first."""
        if not self.domain:
            return [self.name]
        short = self.name.removesuffix(f".{self.domain}")
        return [f"{short}.{self.domain}", short]


def hostname_of(pod: Obj, cluster_domain: str) -> Hostname:
    """The names of a pod that has a network of its own; InputError if its full name is too long to be its hostname."""
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
    """/etc/hosts of a pod; `of_machine` is the machine's own, which stands in it where the pod uses its network."""
    lines = ["\t".join([alias["ip"], *(alias.get("hostnames") or ())]) + "\n" for alias in aliases]
    added = "".join(["\n# Entries added by HostAliases.\n", *lines]) if lines else ""
    if of_machine is not None:
        return f"{_HEADER} (host network).\n{of_machine}{added}"
    own = "\t".join([address, *names]) + "\n" if address else ""
    return f"{_HEADER}.\n{_LOCAL}{own}{added}"


def pod_name(pod: Obj) -> str:
    """A pod as kubelets print it, in quotes."""
    metadata = pod["metadata"]
    return quoted(f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata.get('uid') or ''})")


def _cut(name: str) -> str:
    return name if len(name) <= _LENGTH_MAX else name[:_LENGTH_MAX].rstrip("-.")
