"""The generated files of Prometheus and Grafana, in the folder `monitoring` of a data directory.

All files except the programs' own data are rewritten at each start, from `deploy/monitoring`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import yaml

from batchyard.base.instant import HOUR, Duration
from batchyard.package_data import read_folder
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import AUTHORITY, CertificateAuthority
from batchyard.server.platform.data_dir import LOOPBACK, write_private

_SHIPPED: Final = "deploy/monitoring"
#: Prometheus' user and group on the platform; the group may only read /metrics and the health endpoints.
USER: Final = "system:batchyard:prometheus"
GROUP: Final = "system:monitoring"
_VALID_FOR: Final[Duration] = 365 * 24 * HOUR
_GRAFANA_SETTINGS: Final = """\
# Written by `batchyard monitoring` at each start.
[server]
http_addr = {address}
http_port = {port}

[paths]
data = {folder}/data
logs = {folder}/logs
plugins = {folder}/plugins
provisioning = {folder}/provisioning

[analytics]
reporting_enabled = false
check_for_updates = false
check_for_plugin_updates = false
"""


class MonitoringFolder(NamedTuple):
    """The paths of the monitoring folder."""

    path: Path

    @property
    def state(self) -> Path:
        """The state file of the running processes."""
        return self.path / "monitoring.json"

    @property
    def prometheus(self) -> Path:
        """Prometheus' folder."""
        return self.path / "prometheus"

    @property
    def configuration(self) -> Path:
        """Prometheus' configuration."""
        return self.prometheus / "prometheus.yml"

    @property
    def grafana(self) -> Path:
        """Grafana's folder."""
        return self.path / "grafana"

    @property
    def settings(self) -> Path:
        """Grafana's settings."""
        return self.grafana / "grafana.ini"

    @property
    def provisioning(self) -> Path:
        """Grafana's provisioning of the data source and the dashboards."""
        return self.grafana / "provisioning"

    @property
    def dashboards(self) -> Path:
        """The dashboards."""
        return self.grafana / "dashboards"


def monitoring_folder(data_dir: Path) -> MonitoringFolder:
    """The folder of a platform's data directory."""
    return MonitoringFolder(data_dir.resolve() / "monitoring")


def write_prometheus_files(folder: MonitoringFolder, data_dir: Path, url: str) -> None:
    """Write the rules, the configuration for the platform at `url`, and a client certificate for /metrics."""
    own = folder.prometheus
    own.mkdir(parents=True, exist_ok=True)
    is_secure = url.startswith("https:")
    if is_secure:
        authority = CertificateAuthority(data_dir, wall_clock())
        signed = authority.client(USER, [GROUP], _VALID_FOR)
        write_private(own / "ca.crt", (data_dir / AUTHORITY).read_bytes())
        write_private(own / "client.crt", signed.certificate)
        write_private(own / "client.key", signed.key)
    rules = read_folder(f"{_SHIPPED}/prometheus", ".rules.yml")
    for name, text in rules.items():
        write_private(own / name, text.encode())
    text = read_folder(f"{_SHIPPED}/prometheus", "prometheus.yml")["prometheus.yml"]
    write_private(folder.configuration, _dumped(_prometheus(text, url, list(rules))))


def _prometheus(text: str, url: str, rules: list[str]) -> Mapping[str, Any]:
    """The configuration of `deploy/monitoring`, adapted to a platform at this URL."""
    place = urlsplit(url)
    configuration: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    configuration["rule_files"] = rules
    for job in configuration["scrape_configs"]:
        del job["authorization"], job["tls_config"]
        job["scheme"] = place.scheme
        if place.scheme == "https":
            job["tls_config"] = {"ca_file": "ca.crt", "cert_file": "client.crt", "key_file": "client.key"}
        job["static_configs"] = [{"targets": [place.netloc]}]
    return configuration


def write_grafana_files(folder: MonitoringFolder, prometheus: str, port: int) -> None:
    """Write Grafana's settings, dashboards and data source; `prometheus` is the URL of the latter."""
    folder.dashboards.mkdir(parents=True, exist_ok=True)
    for kind in ("datasources", "dashboards"):
        (folder.provisioning / kind).mkdir(parents=True, exist_ok=True)
        for name, text in read_folder(f"{_SHIPPED}/grafana/provisioning/{kind}", ".yml").items():
            found: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
            for source in found.get("datasources", ()):
                source["url"] = prometheus
            for provider in found.get("providers", ()):
                provider["options"]["path"] = str(folder.dashboards)
            write_private(folder.provisioning / kind / name, _dumped(found))
    for name, text in read_folder(f"{_SHIPPED}/grafana/dashboards", ".json").items():
        write_private(folder.dashboards / name, text.encode())
    settings = _GRAFANA_SETTINGS.format(address=LOOPBACK, port=port, folder=folder.grafana)
    write_private(folder.settings, settings.encode())


def _dumped(document: Mapping[str, Any]) -> bytes:
    head = "# Written by `batchyard monitoring` at each start.\n"
    return (head + yaml.safe_dump(document, sort_keys=False)).encode()
