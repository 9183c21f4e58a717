"""How a pod calls itself.

Source: pkg/kubelet/kubelet_pods.go (GeneratePodHostNameAndDomain, truncatePodHostnameIfNeeded), pkg/kubelet/util
(GetNodenameForKernel).
"""

from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.runtime.local.errors import InputError
from batchyard.runtime.local.quoting import quoted

_LENGTH_MAX: Final = 63
_FULL_LENGTH_MAX: Final = 64


class Hostname(NamedTuple):
    """The names of a pod."""

    #: What it calls itself, also in HOSTNAME.
    name: str
    #: The domain of its name in /etc/hosts; '' if it has none.
    domain: str


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


def pod_name(pod: Obj) -> str:
    """A pod as kubelets print it, in quotes."""
    metadata = pod["metadata"]
    return quoted(f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata.get('uid') or ''})")


def _cut(name: str) -> str:
    return name if len(name) <= _LENGTH_MAX else name[:_LENGTH_MAX].rstrip("-.")
