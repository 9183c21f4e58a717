"""The addresses of pods on this machine, each in turn, and the bridge's own; what their file of hosts says."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network
from typing import Any, Final

_PODS: Final = IPv4Network("10.77.0.0/16")


class Addresses:
    """See the module. They are given as `10.77.0.5/16`, by the uid of a pod."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next = 2

    @property
    def gateway(self) -> str:
        """The address of the bridge."""
        return str(_PODS[1])

    def take(self, uid: str) -> str:
        """An address that no other pod has, each in turn so that none is soon another's."""
        last = _PODS.num_addresses - 2
        for _ in range(last):
            number, self._next = self._next, self._next % last + 1
            address = str(IPv4Interface((_PODS[max(number, 2)], _PODS.prefixlen)))
            if address not in self._taken:
                break
        self.keep(uid, address)
        return address

    def keep(self, uid: str, address: str | None) -> None:
        """Take note of an address that a pod has from before."""
        if address is not None:
            self.give_back(uid)
            self._given[uid] = address
            self._taken.add(address)

    def give_back(self, uid: str) -> None:
        """Have the address of a pod that is no more."""
        self._taken.discard(self._given.pop(uid, ""))


def hosts_file(address: str, names: Sequence[str], aliases: Sequence[Mapping[str, Any]]) -> str:
    """`/etc/hosts` of a pod's containers. Source: nodeHostsFileContent and managedHostsFileContent of pkg/kubelet."""
    lines = [
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::\tip6-localnet",
        "fe00::\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ]
    if address:
        lines.append("\t".join([address, *names]))
    if aliases:
        lines += ["", "# Entries added by HostAliases."]
        lines += ["\t".join([alias["ip"], *(alias.get("hostnames") or ())]) for alias in aliases]
    return "\n".join([*lines, ""])
