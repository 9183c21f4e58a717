"""Detects Kueue, JobSet's controller or another batchyard at work on the same objects; reads Kueue's Configuration.

Other controllers are recognized by the webhooks that they install, whatever the name of the configuration, and by the
managers in the `managedFields` of objects. Both are checked before the operator starts, and while it runs. Sources:
config/default and charts of Kueue and of JobSet; the `name` of their webhooks' markers.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Instant, format_age
from batchyard.client.transport import HttpRequest, decode_object, failure_reason, kind_path, list_in_response
from batchyard.client.write_queue import SHARED_MANAGERS
from batchyard.controller_groups import ADMISSION, JOBSET, PROVISIONING
from batchyard.interfaces.client import WatchEvent
from batchyard.scheduling.kueue_configuration import unsupported_fields
from batchyard.server.clocks.server import is_other_server
from batchyard.server.clocks.wall import sleep_for, wall_clock
from batchyard.server.operator.snapshot import RequestSender, send_with_retries
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

#: How often webhook configurations are checked.
CHECK_INTERVAL: Final = 5 * SECOND
_WEBHOOK_CONFIGURATIONS_PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
#: A manager that wrote within this time is assumed to be running.
_RECENT_PERIOD: Final = 10 * MINUTE
#: The number of objects of a kind that are checked. A running controller would have written all of them.
_CHECKED_OBJECTS_PER_KIND_MAX: Final = 50
_BATCHYARD_LABELS: Final = {"app.kubernetes.io/name": "batchyard"}
#: A webhook of programs that admit Workloads (Kueue, batchyard), and a webhook of programs that handle JobSets
#: (JobSet's controller, Kueue, batchyard).
_WORKLOAD_WEBHOOK, _JOBSET_WEBHOOK = "vworkload.kb.io", "vjobset.kb.io"
#: The webhook by which another batchyard installation is recognized, by controller group.
_BATCHYARD_WEBHOOKS: Final = {ADMISSION: _WORKLOAD_WEBHOOK, JOBSET: "vpod.kb.io"}


class WebhookService(NamedTuple):
    """The Service (namespace and name) through which the API server calls webhooks."""

    namespace: str
    name: str


class _UpstreamController(NamedTuple):
    name: str
    #: The names of its field managers (one exact, one prefix), and the kinds that it writes.
    managers: Sequence[str]
    kinds: Sequence[str]
    #: The default name of its webhook configuration.
    configuration: str


_KUEUE: Final = _UpstreamController(
    "Kueue", ("kueue", "kueue-"), (scheme.CLUSTER_QUEUE, scheme.WORKLOAD), "kueue-validating-webhook-configuration"
)
_UPSTREAM_CONTROLLERS: Final[Mapping[str, _UpstreamController]] = {
    ADMISSION: _KUEUE,
    PROVISIONING: _KUEUE,
    JOBSET: _UpstreamController(
        "JobSet's controller", ("jobset", "jobset-"), (scheme.JOB_SET,), "jobset-validating-webhook-configuration"
    ),
}


async def startup_conflict(sender: RequestSender, groups: Sequence[str], own_service: WebhookService) -> str:
    """Return why these controller groups must not start, if another controller already does their work; else ''."""
    if conflict := await _platform_conflict(sender, groups):
        return conflict
    if conflict := await _webhook_conflict(sender, groups, own_service):
        return conflict
    for group in groups:
        upstream = _UPSTREAM_CONTROLLERS.get(group)
        recent_writes = [] if upstream is None else [sign async for sign in _recent_writes(sender, upstream)]
        if upstream is not None and recent_writes:
            return _conflict_message(group, upstream.name, recent_writes)
    return ""


async def watch_for_conflict(sender: RequestSender, groups: Sequence[str], own_service: WebhookService) -> str:
    """Check the webhook configurations periodically until they show a competing controller; return why it conflicts."""
    conflict_message = ""
    while not conflict_message:
        await sleep_for(CHECK_INTERVAL)
        conflict_message = await _webhook_conflict(sender, groups, own_service)
    return conflict_message


def conflicting_write(event: WatchEvent, groups: Sequence[str], now: Instant) -> str:
    """Return why these controller groups must stop: a competing controller made this change; '' if none did.

    Changes from 10 minutes before `now` or earlier do not count.
    """
    for group in groups:
        upstream = _UPSTREAM_CONTROLLERS.get(group)
        if upstream is not None and event.key.kind in upstream.kinds:
            written_at = _last_written_at([event.obj], upstream.managers)
            previously_written_at = None if event.old is None else _last_written_at([event.old], upstream.managers)
            if written_at is not None and written_at != previously_written_at and now - written_at < _RECENT_PERIOD:
                return _conflict_message(
                    group, upstream.name, [f"it wrote {kind_info(event.key.kind).kind} {event.key.name}"]
                )
    return ""


async def _platform_conflict(sender: RequestSender, groups: Sequence[str]) -> str:
    if await is_other_server(sender):
        return ""
    response = await sender.send_request(HttpRequest("GET", REPORT))
    platform_groups = (decode_object(response.body).get("controllers") or ()) if response.code == 200 else ()
    shared_groups = ",".join(group for group in groups if group in platform_groups)
    if not shared_groups:
        return ""
    controllers = ",".join(f"-{group}" for group in groups if group in platform_groups)
    return (
        f"this platform runs {shared_groups} itself: two controllers would decide about the same objects. "
        f"Start the platform with --controllers '*,{controllers}', or omit these groups from the operator's "
        "--controllers; --beside-upstream skips this check"
    )


async def _webhook_conflict(sender: RequestSender, groups: Sequence[str], own_service: WebhookService) -> str:
    listed_objects = list_in_response(await sender.send_request(HttpRequest("GET", _WEBHOOK_CONFIGURATIONS_PATH)))
    webhook_configurations = [
        configuration
        for configuration in (listed_objects or {}).get("items") or ()
        if not _refers_to_service(configuration, own_service)
    ]
    for group in groups:
        for configuration in webhook_configurations:
            name = _competing_controller(configuration, group)
            if name:
                return _conflict_message(
                    group, name, [f"its webhook configuration is {configuration['metadata']['name']}"]
                )
    return ""


def _conflict_message(group: str, competitor: str, evidence: Sequence[str]) -> str:
    return (
        f"{competitor} is active on this cluster ({'; '.join(evidence)}): "
        f"two controllers would decide about the same objects. Remove {competitor}, "
        f"or omit {group} from --controllers; --beside-upstream skips this check"
    )


def _competing_controller(configuration: Obj, group: str) -> str:
    webhook_names = [hook.get("name") for hook in configuration.get("webhooks") or ()]
    if _BATCHYARD_LABELS.items() <= (configuration["metadata"].get("labels") or {}).items():
        return "another batchyard" if _BATCHYARD_WEBHOOKS.get(group) in webhook_names else ""
    upstream = _UPSTREAM_CONTROLLERS.get(group)
    if upstream is None:
        return ""
    does_same_work = (
        (_JOBSET_WEBHOOK in webhook_names and _WORKLOAD_WEBHOOK not in webhook_names)
        if group == JOBSET
        else _WORKLOAD_WEBHOOK in webhook_names
    )
    return upstream.name if does_same_work or configuration["metadata"]["name"] == upstream.configuration else ""


def _refers_to_service(configuration: Obj, own_service: WebhookService) -> bool:
    services = [(hook.get("clientConfig") or {}).get("service") or {} for hook in configuration.get("webhooks") or ()]
    return any((service.get("namespace"), service.get("name")) == own_service for service in services)


async def _recent_writes(sender: RequestSender, upstream: _UpstreamController) -> AsyncIterator[str]:
    for kind in upstream.kinds:
        served_kind = kind_info(kind)
        path = kind_path(served_kind, served_kind.storage_version)
        response = await sender.send_request(HttpRequest("GET", f"{path}?limit={_CHECKED_OBJECTS_PER_KIND_MAX}"))
        listed_objects = list_in_response(response) or {}
        written_at = _last_written_at(listed_objects.get("items") or (), upstream.managers)
        now = response.server_time or wall_clock()  # managedFields have the server's time
        if written_at is not None and now - written_at < _RECENT_PERIOD:
            yield f"it wrote a {served_kind.kind} {format_age(max(0, now - written_at))} ago"


def _last_written_at(objects: Sequence[Mapping[str, Any]], field_managers: Sequence[str]) -> Instant | None:
    """Return the time of the last write by a field manager of a competing controller; None if there is no such write.

    `field_managers` are an exact name and a prefix of names. Writes by names that this operator uses too are ignored.
    Kueue is detected nevertheless, because it writes ClusterQueues by another name.
    """
    exact_manager, manager_prefix = field_managers
    write_times = [
        parse_time(entry["time"])
        for obj in objects
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("time") and entry.get("manager") not in SHARED_MANAGERS
        if entry.get("manager") == exact_manager or str(entry.get("manager")).startswith(manager_prefix)
    ]
    return max(write_times, default=None)


# Reads Kueue's Configuration from the ConfigMap that Kueue's manager mounts.
#
# Source: config/components/manager of Kueue, and the chart that is released with it.


_CONFIG_KEY: Final = "controller_manager_config.yaml"


class ConfigMapName(NamedTuple):
    """The namespace and the name of a ConfigMap."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The URL path of the ConfigMap."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


#: The ConfigMap of a released Kueue.
KUEUE_CONFIG_MAP: Final = ConfigMapName("kueue-system", "kueue-manager-config")
#: The ConfigMap of an installed batchyard operator.
OPERATOR_CONFIG_MAP: Final = ConfigMapName("batchyard-system", "batchyard-operator-configuration")


class ConfigurationResult(NamedTuple):
    """Kueue's Configuration or None, and a message for the user: where it was read, or why it could not be read."""

    configuration: Obj | None
    message: str
    #: Whether the Configuration could not be read, although a ConfigMap exists or may exist.
    is_unreadable: bool = False


async def read_kueue_configuration(
    sender: RequestSender, config_maps: Sequence[ConfigMapName] = (KUEUE_CONFIG_MAP, OPERATOR_CONFIG_MAP)
) -> ConfigurationResult:
    """Read Kueue's Configuration from the first of these ConfigMaps for which the server does not return 404.

    Return the Configuration with a message.
    """
    for config_map in config_maps:
        response = await send_with_retries(sender, HttpRequest("GET", config_map.path))
        name = f"ConfigMap {config_map.name} of {config_map.namespace}"
        if response.code == 200:
            return _parse_config_map(name, (decode_object(response.body).get("data") or {}).get(_CONFIG_KEY))
        if response.code != 404:
            error_message = f"Kueue's Configuration cannot be read from {name}: {failure_reason(response)}"
            return ConfigurationResult(None, error_message, is_unreadable=True)
    return ConfigurationResult(None, "no ConfigMap with Kueue's Configuration found")


def unsupported_settings(configuration: Obj) -> Iterator[str]:
    """Yield a message for each setting of Kueue's Configuration that batchyard does not support."""
    for path, instead in unsupported_fields(configuration):
        yield f"the setting {path} of Kueue's Configuration is not supported, so {instead}"


def _parse_config_map(name: str, text: str | None) -> ConfigurationResult:
    if text is None:
        return ConfigurationResult(None, f"{name} has no {_CONFIG_KEY} with Kueue's Configuration", is_unreadable=True)
    try:
        return ConfigurationResult(read_configuration(name, text), f"Kueue's Configuration was read from {name}")
    except InvalidConfiguration as invalid:
        return ConfigurationResult(None, f"Kueue's Configuration cannot be read: {invalid}", is_unreadable=True)
