"""Kueue's Configuration as a cluster has it: in the ConfigMap that its manager is given as a file.

Source: config/components/manager of Kueue, and the chart that is released with it.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.scheduling.kueue_configuration import decided_otherwise
from batchyard.server.operator.snapshot import Asking, patiently

_KEY: Final = "controller_manager_config.yaml"


class Place(NamedTuple):
    """A ConfigMap."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Where it is asked for."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


#: That of Kueue as it is released.
KUEUE: Final = Place("kueue-system", "kueue-manager-config")
#: That of our operator as it is installed.
OURS: Final = Place("batchyard-system", "batchyard-operator-configuration")


class Found(NamedTuple):
    """What was found: a Configuration, or None; and what is to be said of that."""

    configuration: Obj | None
    told: str
    #: Whether there is one that could not be had.
    is_lacking: bool = False


async def configuration_of(wire: Asking, places: Sequence[Place] = (KUEUE, OURS)) -> Found:
    """The Configuration of the first of these ConfigMaps that is there."""
    for place in places:
        answer = await patiently(wire, HttpRequest("GET", place.path))
        name = f"ConfigMap {place.name} of {place.namespace}"
        if answer.code == 200:
            return _read(name, (decoded(answer.body).get("data") or {}).get(_KEY))
        if answer.code != 404:
            return Found(None, f"Kueue's Configuration cannot be read: {trouble_of(answer)}", is_lacking=True)
    return Found(None, "there is no ConfigMap with Kueue's Configuration")


def told_beside(configuration: Obj) -> Iterator[str]:
    """What of it nobody knows who looks on, or works out what would be."""
    for path, instead in decided_otherwise(configuration):
        yield f"{path} of Kueue's Configuration is not known here: it is taken that {instead}"


def _read(name: str, text: str | None) -> Found:
    if text is None:
        return Found(None, f"{name} has no {_KEY}, where Kueue's Configuration would be", is_lacking=True)
    try:
        return Found(read_configuration(name, text), f"Kueue's Configuration is that of {name}")
    except InvalidConfiguration as invalid:
        return Found(None, f"Kueue's Configuration cannot be read: {invalid}", is_lacking=True)
