"""A real Prometheus that scrapes a platform, and the expressions of dashboards."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from e2e_platform.platform_process import UpProcess

FOUND: Final = shutil.which("prometheus") is not None and shutil.which("promtool") is not None
NONE: Final = "there is no Prometheus on this machine"
DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "monitoring"
_LOOKS_EVERY: Final = 0.2
_ENDS_WITHIN: Final = 30
_VARIABLE: Final = re.compile(r"\$\{?(\w+)\}?")


class PrometheusQueries:
    """Queries a Prometheus at a URL while its process runs."""

    def __init__(self, url: str, process: "subprocess.Popen[Any]") -> None:
        self._url = f"{url}/api/v1/"
        self.process = process

    def get(self, path: str, **query: str) -> Any:
        """The data of a response."""
        with urlopen(f"{self._url}{path}?{urlencode(query)}", timeout=_ENDS_WITHIN) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        """The current result of an expression; empty before Prometheus listens."""
        try:
            result: list[Any] = self.get("query", query=expression)["result"]
        except URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return []
            raise
        return result

    def rounds(self, count: int) -> Iterator[int]:
        """A number of polling rounds; fails if the process ends meanwhile."""
        for number in range(count):
            yield number
            try:
                raise AssertionError(f"Prometheus has ended: {self.process.wait(_LOOKS_EVERY)}")
            except subprocess.TimeoutExpired:
                continue

    def answers(self, expressions: list[str], count: int) -> dict[str, list[Any]]:
        """The results of expressions: polls until each has a result, for a number of rounds."""
        found: dict[str, list[Any]] = {expression: [] for expression in expressions}
        for _ in self.rounds(count):
            for expression in [each for each, result in found.items() if not result]:
                found[expression] = self.query(expression)
            if all(found.values()):
                break
        return found


class Prometheus(PrometheusQueries):
    """A process of Prometheus with the shipped configuration and a shorter scrape interval."""

    def __init__(self, folder: Path, platform: UpProcess) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
        config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for job in config["scrape_configs"]:
            job["scrape_interval"] = "1s"
            job["static_configs"] = [{"targets": [platform.url.partition("://")[2]]}]
        platform.kubectl("apply", "-f", str(DEPLOY / "access.yaml"))
        (folder / "token").write_text(platform.kubectl("create", "token", "prometheus", "-n", "monitoring"))
        shutil.copy(platform.kubeconfig.parent / "ca.crt", folder)
        shutil.copy(DEPLOY / "prometheus" / "batchyard.rules.yml", folder)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"127.0.0.1:{free.getsockname()[1]}"
        options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
        command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        self._log = (folder / "log").open("wb")
        process = subprocess.Popen([*command, f"--web.listen-address={place}"], stderr=self._log)
        super().__init__(f"http://{place}", process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(_ENDS_WITHIN)
        self._log.close()


def expressions_of(dashboard: Path) -> list[str]:
    """All expressions of a dashboard with their variables replaced."""
    return [_VARIABLE.sub(_replace_variables, text) for text in _texts(json.loads(dashboard.read_text("utf-8")))]


def _replace_variables(variable: re.Match[str]) -> str:
    """A time for interval and range variables, a match of everything for other variables."""
    return "30s" if variable[1].endswith(("interval", "range")) else ".*"


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        for value in part.values():
            yield from _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)
