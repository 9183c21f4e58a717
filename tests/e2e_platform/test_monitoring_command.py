"""`batchyard monitoring`: a real Prometheus for a running platform, and a stand-in for Grafana."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import pytest
import yaml

from e2e_platform.platform_process import Child, UpProcess, kubectl
from e2e_platform.prometheus import FOUND, NONE, PrometheusQueries

HERE: Final = Path(__file__).parent
RATIO: Final = "cluster_queue:kueue_reserved:ratio"
#: Serves the health endpoint at the address in the settings of Grafana.
FAKE_GRAFANA: Final = """#!{python}
import configparser, http.server, sys
options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
settings = configparser.ConfigParser()
settings.read(options["config"])
class HealthHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
place = (settings["server"]["http_addr"], settings["server"].getint("http_port"))
http.server.HTTPServer(place, HealthHandler).serve_forever()
"""

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
needs_prometheus = pytest.mark.skipif(not FOUND, reason=NONE)


class MonitoringCommandRun(NamedTuple):
    """A platform and the output of the monitoring command."""

    platform: UpProcess
    folder: Path
    stated: Any
    queries: PrometheusQueries


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("data"), "--cluster", str(HERE / "monitored.yaml")) as platform:
        yield platform


@pytest.fixture(scope="module")
def monitoring_run(running: UpProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoringCommandRun]:
    folder, printed = running.kubeconfig.parent, tmp_path_factory.mktemp("printed") / "said.json"
    running.kubectl("apply", "-f", str(HERE / "monitored_queues.yaml"))
    options = ("--data-dir", str(folder), "--port", "0", "--no-grafana", "--output", "json")
    with Child("monitoring", *options, printed=printed) as monitoring:
        lines = [monitoring.reported.readline()]
        assert "Prometheus listening on" in lines[0]
        while not (stated := printed.read_text()).endswith("}\n"):
            assert monitoring.process.poll() is None
        stated = json.loads(stated)
        yield MonitoringCommandRun(
            running, folder, stated, PrometheusQueries(stated["prometheus"]["url"], monitoring.process)
        )
        pid = stated["prometheus"]["pid"]
        assert monitoring.end() == 0
        assert not Path(f"/proc/{pid}").exists()
        assert not (folder / "monitoring" / "monitoring.json").exists()
        assert (folder / "monitoring" / "prometheus" / "data").is_dir()


def batchyard(*arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "batchyard", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=90, check=False
    )


@needs_kubectl
@needs_prometheus
def test_prometheus_scrapes_platform_and_records_rules(monitoring_run: MonitoringCommandRun) -> None:
    target = 'up{job="batchyard"} == 1'
    result = monitoring_run.queries.answers([target, RATIO], 300)
    assert result[target][0]["metric"]["instance"] == monitoring_run.platform.url.partition("://")[2]
    assert {row["metric"]["cluster_queue"] for row in result[RATIO]} >= {"research"}
    rules = [rule["name"] for group in monitoring_run.queries.get("rules")["groups"] for rule in group["rules"]]
    assert {RATIO, "QueueStuck"} <= set(rules)


@needs_kubectl
@needs_prometheus
def test_prometheus_listens_on_loopback_and_may_read_metrics_only(monitoring_run: MonitoringCommandRun) -> None:
    assert monitoring_run.stated["prometheus"]["url"].startswith("http://127.0.0.1:")
    own = Path(monitoring_run.stated["prometheus"]["configuration"]).parent
    assert {(own / name).stat().st_mode & 0o077 for name in ("client.key", "prometheus.yml")} == {0}
    config = yaml.safe_load(monitoring_run.platform.kubeconfig.read_text())
    keys = {"client-certificate": str(own / "client.crt"), "client-key": str(own / "client.key")}
    config["users"] = [{"name": "prometheus", "user": keys}]
    config["contexts"][0]["context"]["user"] = "prometheus"
    kubeconfig = own / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    assert "kueue_" in kubectl(kubeconfig, "get", "--raw", "/metrics")
    assert "Forbidden" in kubectl(kubeconfig, "get", "nodes", fails=True)


@needs_kubectl
@needs_prometheus
def test_grafana_is_provisioned_with_data_source_and_dashboards(monitoring_run: MonitoringCommandRun) -> None:
    grafana = monitoring_run.stated["grafana"]
    assert (grafana["url"], grafana["pid"]) == (None, None)
    provisioning = Path(grafana["provisioning"])
    source = yaml.safe_load((provisioning / "datasources" / "batchyard.yml").read_text())
    assert source["datasources"][0]["url"] == monitoring_run.stated["prometheus"]["url"]
    provider = yaml.safe_load((provisioning / "dashboards" / "batchyard.yml").read_text())
    assert provider["providers"][0]["options"]["path"] == grafana["dashboards"]
    titles = {json.loads(path.read_text())["title"] for path in Path(grafana["dashboards"]).glob("*.json")}
    assert {"Kueue Dashboard", "batchyard: queues", "batchyard: nodes and GPUs"} <= titles
    assert any(grafana["configuration"] in word for word in grafana["command"])


@needs_kubectl
@needs_prometheus
def test_monitoring_rejects_second_run_for_data_directory(monitoring_run: MonitoringCommandRun) -> None:
    done = batchyard("monitoring", "--data-dir", monitoring_run.folder, "--port", "0")
    assert done.returncode == 1
    assert "already runs" in done.stderr
    assert f"batchyard monitoring --end --data-dir {monitoring_run.folder}" in done.stderr


@needs_prometheus
def test_detached_monitoring_runs_with_grafana_until_end(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "grafana"
    program.write_text(FAKE_GRAFANA.format(python=sys.executable))
    program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    with UpProcess(tmp_path / "data", "--insecure-loopback") as platform:
        ports = ("--port", "0", "--grafana-port", "0")
        done = batchyard(
            "monitoring", "--data-dir", tmp_path / "data", *ports, "--detach", "--output", "json", PATH=path
        )
        assert done.returncode == 0, done.stderr
        stated = json.loads(done.stdout)
        try:
            assert urlopen(f"{stated['grafana']['url']}/api/health").status == 200
            assert urlopen(f"{stated['prometheus']['url']}/-/ready").status == 200
            assert stated["platform"] == platform.url
            config = yaml.safe_load(Path(stated["prometheus"]["configuration"]).read_text())
            assert {job["scheme"] for job in config["scrape_configs"]} == {"http"}
        finally:
            ended = batchyard("monitoring", "--end", "--data-dir", tmp_path / "data")
        assert ended.returncode == 0
        assert ended.stderr.count("has ended") == 2
        again = batchyard("monitoring", "--end", "--data-dir", tmp_path / "data")
        assert (again.returncode, "no monitoring runs" in again.stderr) == (1, True)


@needs_prometheus
def test_monitoring_ends_and_names_log_when_prometheus_ends(tmp_path: Path) -> None:
    with (
        UpProcess(tmp_path / "data", "--insecure-loopback"),
        Child("monitoring", "--data-dir", str(tmp_path / "data"), "--port", "0", "--no-grafana") as monitoring,
    ):
        assert "Prometheus listening on" in monitoring.reported.readline()
        state = json.loads((tmp_path / "data" / "monitoring" / "monitoring.json").read_text())
        os.kill(state["Prometheus"]["pid"], signal.SIGKILL)
        assert monitoring.ended() == 1
        assert "Prometheus ended with exit code -9; the end of its log" in monitoring.reported.read()


def test_monitoring_fails_without_running_platform(tmp_path: Path) -> None:
    done = batchyard("monitoring", "--data-dir", tmp_path)
    assert (done.returncode, "no platform runs in" in done.stderr) == (1, True)


def test_monitoring_reports_how_to_install_prometheus(running: UpProcess, tmp_path: Path) -> None:
    done = batchyard("monitoring", "--data-dir", running.kubeconfig.parent, PATH=str(tmp_path))
    assert (done.returncode, "apt-get install prometheus" in done.stderr) == (1, True)


@needs_prometheus
def test_monitoring_reports_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, UpProcess(tmp_path / "data", "--insecure-loopback"):
        port = str(other.getsockname()[1])
        done = batchyard("monitoring", "--data-dir", tmp_path / "data", "--port", port)
        assert done.returncode == 1
        assert f"cannot use port {port} on 127.0.0.1" in done.stderr
        assert "--port N" in done.stderr
