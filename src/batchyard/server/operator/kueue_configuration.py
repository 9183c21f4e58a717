"""Reads Kueue's Configuration from the ConfigMap that Kueue's manager mounts as a file.

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
    """The namespace and name of a ConfigMap."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The URL path of the ConfigMap."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


#: The ConfigMap of a released Kueue.
KUEUE: Final = Place("kueue-system", "kueue-manager-config")
#: The ConfigMap of an installed batchyard operator.
OURS: Final = Place("batchyard-system", "batchyard-operator-configuration")


class Found(NamedTuple):
    """A Configuration, or None, and a message about it for the user."""

    configuration: Obj | None
    message: str
    #: Whether a ConfigMap exists whose Configuration could not be read.
    is_lacking: bool = False


async def configuration_of(wire: Asking, places: Sequence[Place] = (KUEUE, OURS)) -> Found:
    """Return the Configuration of the first of these ConfigMaps that exists."""
    for place in places:
        answer = await patiently(wire, HttpRequest("GET", place.path))
        name = f"ConfigMap {place.name} of {place.namespace}"
        if answer.code == 200:
            return _read(name, (decoded(answer.body).get("data") or {}).get(_KEY))
        if answer.code != 404:
            return Found(None, f"Kueue's Configuration cannot be read: {trouble_of(answer)}", is_lacking=True)
    return Found(None, "no ConfigMap with Kueue's Configuration found")


def told_beside(configuration: Obj) -> Iterator[str]:
    """Yield a message for each setting of a Configuration that batchyard does not support."""
    for path, instead in decided_otherwise(configuration):
        yield f"{path} of Kueue's Configuration is not supported; assumed instead: {instead}"


def _read(name: str, text: str | None) -> Found:
    if text is None:
        return Found(None, f"{name} has no key {_KEY} with Kueue's Configuration", is_lacking=True)
    try:
        return Found(read_configuration(name, text), f"Kueue's Configuration is that of {name}")
    except InvalidConfiguration as invalid:
        return Found(None, f"Kueue's Configuration cannot be read: {invalid}", is_lacking=True)
