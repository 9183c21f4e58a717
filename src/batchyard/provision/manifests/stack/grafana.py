"""Grafana in the cluster: provisioned data source and dashboards, and an optional password Secret."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from batchyard.api.meta import Obj
from batchyard.package_data import read_folder
from batchyard.provision.manifests.stack import prometheus
from batchyard.provision.manifests.stack_parts import NAMESPACE, Server, config_map, deployment, service
from batchyard.provision.model import MonitoringStack, Part, PlatformModel
from batchyard.provision.yaml_output import dumped

NAME: Final = "grafana"
PORT: Final = 3000
REQUESTS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "256Mi"}
_MEMORY_LIMIT: Final = "512Mi"
#: The user ID in Grafana's image.
_USER: Final = 472
_SHIPPED: Final = "deploy/monitoring/grafana"
_FOLDER: Final = "/etc/grafana"
_DASHBOARDS: Final = f"{_FOLDER}/dashboards"
_PROVISIONING: Final = ("datasources", "dashboards")
#: The Secret with the key `password` for the user admin; without it Grafana's default applies.
_SECRET: Final = "grafana-admin"  # noqa: S105 - the name of a Secret
_SETTINGS: Final[Mapping[str, str]] = {
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_USERS_ALLOW_SIGN_UP": "false",
}


def objects(platform: PlatformModel, stack: MonitoringStack) -> list[Obj]:
    """Return all of its objects."""
    provisioning = {kind: _provisioned(kind) for kind in _PROVISIONING}
    dashboards = read_folder(f"{_SHIPPED}/dashboards", ".json") if platform.monitoring.dashboards else {}
    server = _server(stack, provisioning, list(dashboards))
    return [
        *(config_map(platform, _map_of(kind), {"batchyard.yml": text}) for kind, text in provisioning.items()),
        *(config_map(platform, _map_of_dashboard(name), {name: text}) for name, text in dashboards.items()),
        deployment(platform, server),
        service(platform, server),
    ]


def _map_of(kind: str) -> str:
    return f"grafana-provisioning-{kind}"


def _map_of_dashboard(name: str) -> str:
    return f"grafana-dashboard-{name.removesuffix('.json')}"


def _provisioned(kind: str) -> str:
    """Return a provisioning file for this pod's Prometheus and folder."""
    (text,) = read_folder(f"{_SHIPPED}/provisioning/{kind}", ".yml").values()
    found: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    for source in found.get("datasources", ()):
        source["url"] = f"http://{prometheus.PROMETHEUS_NAME}.{NAMESPACE}.svc:{prometheus.PROMETHEUS_PORT}"
    for provider in found.get("providers", ()):
        provider["options"]["path"] = _DASHBOARDS
    return dumped(found)


def _server(stack: MonitoringStack, provisioning: Mapping[str, str], dashboards: list[str]) -> Server:
    volumes: list[tuple[Part, str]] = [
        ({"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}, "/var/lib/grafana"),
        ({"name": "temporary", "emptyDir": {"sizeLimit": "100Mi"}}, "/tmp"),  # noqa: S108 - of its container
    ]
    volumes += [
        ({"name": f"provisioning-{kind}", "configMap": {"name": _map_of(kind)}}, f"{_FOLDER}/provisioning/{kind}")
        for kind in provisioning
    ]
    if dashboards:
        sources = [{"configMap": {"name": _map_of_dashboard(name)}} for name in dashboards]
        volumes.append(({"name": "dashboards", "projected": {"sources": sources}}, _DASHBOARDS))
    password = {"secretKeyRef": {"name": _SECRET, "key": "password", "optional": True}}
    return Server(
        name=NAME,
        image=stack.grafana_image,
        port=PORT,
        ready="/api/health",
        user=_USER,
        requests=REQUESTS,
        memory_limit=_MEMORY_LIMIT,
        env=[
            *({"name": name, "value": value} for name, value in _SETTINGS.items()),
            {"name": "GF_SECURITY_ADMIN_PASSWORD", "valueFrom": password},
        ],
        volumes=volumes,
        configuration=list(provisioning.values()),
    )
