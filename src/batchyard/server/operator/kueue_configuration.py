"""Reads Kueue's Configuration from the ConfigMap that Kueue's manager mounts as a file.

Source: config/components/manager of Kueue, and the chart that is released with it.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import decoded, failure_reason
from batchyard.scheduling.kueue_configuration import unsupported_fields
from batchyard.server.operator.snapshot import RequestSender, send_with_retries

_KEY: Final = "controller_manager_config.yaml"


class ConfigMapName(NamedTuple):
    """The namespace and name of a ConfigMap."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The URL path of the ConfigMap."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


#: The ConfigMap of a released Kueue.
KUEUE: Final = ConfigMapName("kueue-system", "kueue-manager-config")
#: The ConfigMap of an installed batchyard operator.
OURS: Final = ConfigMapName("batchyard-system", "batchyard-operator-configuration")


class ConfigurationResult(NamedTuple):
    """A Configuration, or None, and a message about it for the user."""

    configuration: Obj | None
    message: str
    #: Whether a ConfigMap exists whose Configuration could not be read.
    is_lacking: bool = False


async def configuration_of(wire: RequestSender, places: Sequence[ConfigMapName] = (KUEUE, OURS)) -> ConfigurationResult:
    """Return the Configuration of the first of these ConfigMaps that exists."""
    for place in places:
        answer = await send_with_retries(wire, HttpRequest("GET", place.path))
        name = f"ConfigMap {place.name} of {place.namespace}"
        if answer.code == 200:
            return _read(name, (decoded(answer.body).get("data") or {}).get(_KEY))
        if answer.code != 404:
            return ConfigurationResult(
                None, f"Kueue's Configuration cannot be read: {failure_reason(answer)}", is_lacking=True
            )
    return ConfigurationResult(None, "no ConfigMap with Kueue's Configuration found")


def unsupported_settings(configuration: Obj) -> Iterator[str]:
    """Yield a message for each setting of a Configuration that batchyard does not support."""
    for path, instead in unsupported_fields(configuration):
        yield f"{path} of Kueue's Configuration is not supported; assumed instead: {instead}"


def _read(name: str, text: str | None) -> ConfigurationResult:
    if text is None:
        return ConfigurationResult(None, f"{name} has no key {_KEY} with Kueue's Configuration", is_lacking=True)
    try:
        return ConfigurationResult(read_configuration(name, text), f"Kueue's Configuration is that of {name}")
    except InvalidConfiguration as invalid:
        return ConfigurationResult(None, f"Kueue's Configuration cannot be read: {invalid}", is_lacking=True)
