"""The variables of a container, and its command with them put in.

Later ones stand before earlier ones: Services, then `envFrom` in order, then `env` in order. `$(NAME)` in a value is a
variable that was set before it, or a Service's. Any name goes that the API lets through: since Kubernetes 1.34 a
kubelet leaves none out. Sources: pkg/kubelet/kubelet_pods.go (makeEnvironmentVariables); pkg/kubelet/container.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.ports.client import Reader
from batchyard.runtime.local.configs import Config, find_config_map, find_secret, no_config_map, no_secret
from batchyard.runtime.local.downward import Facts, facts_of, text_of_resource, variable_of_field
from batchyard.runtime.local.errors import CONFIG, CREATE, ContainerError, InputError
from batchyard.runtime.local.expansion import TOTAL, expand, too_long
from batchyard.runtime.local.services import service_variables

_Find = Callable[[Reader, str, str], Config | None]
#: How to find what a field refers to, how kubelets call it, and what they say where there is none.
_REFERENCES: Final[Mapping[str, tuple[_Find, str, Callable[[str], str]]]] = {
    "configMapRef": (find_config_map, "ConfigMap", no_config_map),
    "secretRef": (find_secret, "Secret", no_secret),
    "configMapKeyRef": (find_config_map, "ConfigMap", no_config_map),
    "secretKeyRef": (find_secret, "Secret", no_secret),
}


def environment(pod: Obj, container: Mapping[str, Any], addresses: Sequence[str], reader: Reader) -> dict[str, str]:
    """The variables of a container by name; ContainerError if one cannot be had.

    `addresses` are those of the pod. What the image brings, HOME and HOSTNAME are no part of it.
    """
    try:
        variables = _variables(facts_of(pod, addresses, reader), container, reader)
    except InputError as error:
        raise ContainerError(CONFIG, str(error)) from error
    for name, value in variables.items():
        if "\0" in value:
            raise ContainerError(CREATE, f"environment variable {name} has a null byte, which no process can be given")
    return variables


def command_line(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Command and arguments of a container with its variables put in. An unknown one stays as it is written.

    ContainerError where they are longer than any process can be given.
    """
    found: list[str] = []
    left = TOTAL
    try:
        for part in [*(container.get("command") or ()), *(container.get("args") or ())]:
            found.append(expand(part, variables.get))
            left -= len(found[-1])
            if left < 0:
                raise too_long()
    except InputError as error:
        raise ContainerError(CREATE, str(error)) from error
    return found


def _variables(facts: Facts, container: Mapping[str, Any], reader: Reader) -> dict[str, str]:
    spec, namespace = facts.pod["spec"], facts.pod["metadata"].get("namespace") or ""
    has_links, has_network = spec.get("enableServiceLinks") is not False, bool(facts.addresses)
    services = service_variables(namespace, reader, has_links=has_links, has_network=has_network)
    own: dict[str, str] = {}
    left = TOTAL
    for source in container.get("envFrom") or ():
        whole = _from_whole(source, namespace, reader)
        left -= sum(len(name) + len(value) for name, value in whole.items())
        if left < 0:
            raise too_long()
        own.update(whole)
    for variable in container.get("env") or ():
        if variable.get("value"):
            value: str | None = expand(variable["value"], ChainMap(own, services).get)
        else:
            value = _from_source(facts, container, variable.get("valueFrom") or {}, reader)
        if value is not None:
            left -= len(variable["name"]) + len(value)
            if left < 0:
                raise too_long()
            own[variable["name"]] = value
    return {**{name: value for name, value in services.items() if name not in own}, **own}


def _from_whole(source: Mapping[str, Any], namespace: str, reader: Reader) -> dict[str, str]:
    """The variables of an entry of envFrom."""
    found = next(((field, source[field]) for field in ("configMapRef", "secretRef") if source.get(field)), None)
    if found is None:
        return {}
    field, reference = found
    config = _find(field, reference, namespace, reader)
    prefix: str = source.get("prefix") or ""
    return {prefix + key: text for key, text in sorted(config.texts.items())} if config is not None else {}


def _from_source(facts: Facts, container: Mapping[str, Any], source: Mapping[str, Any], reader: Reader) -> str | None:
    """The value of a variable that has a source, or nothing at all; None: it is not set."""
    if source.get("fieldRef"):
        return variable_of_field(facts, source["fieldRef"]["fieldPath"])
    if source.get("resourceFieldRef"):
        return text_of_resource(facts, source["resourceFieldRef"], container["name"])
    if source.get("fileKeyRef"):
        raise InputError("fileKeyRef is not supported here; set the variable in the command, or by configMapKeyRef")
    for field in ("configMapKeyRef", "secretKeyRef"):
        if source.get(field):
            return _from_key(field, source[field], facts.pod["metadata"].get("namespace") or "", reader)
    return ""


def _from_key(field: str, reference: Mapping[str, Any], namespace: str, reader: Reader) -> str | None:
    config = _find(field, reference, namespace, reader)
    if config is None:
        return None
    key: str = reference["key"]
    if key not in config.texts and not reference.get("optional"):
        noun = _REFERENCES[field][1]
        raise InputError(f"couldn't find key {key} in {noun} {namespace}/{reference.get('name') or ''}")
    return config.texts.get(key)


def _find(field: str, reference: Mapping[str, Any], namespace: str, reader: Reader) -> Config | None:
    """What a reference names; None if there is none and there need not be."""
    find, _, told = _REFERENCES[field]
    name: str = reference.get("name") or ""
    config = find(reader, namespace, name)
    if config is None and not reference.get("optional"):
        raise InputError(told(name))
    return config
