"""The addresses of pods on this machine, each in turn, and the bridge's own."""

from ipaddress import IPv4Interface, IPv4Network
from typing import Final

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
