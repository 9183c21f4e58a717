"""batchyard installed on Kubernetes without its pods: two operators run as processes with its permissions."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from batchyard.operator_manifests import InstallSettings, manifests
from batchyard.operator_manifests.deployment import operator_arguments
from e2e_kubernetes.kubernetes import Kubernetes, KubernetesSettings, wait_for
from e2e_platform.operator_account import audited_requests, forbidden_requests
from e2e_platform.operator_process import OperatorRun, free_port

SETTINGS: Final = InstallSettings()
#: The API server reaches the operators by a Service for this machine, because they run outside of pods.
_HERE: Final = {"type": "ExternalName", "externalName": "localhost"}
_BEGINS_WITHIN: Final = 60.0  # seconds
#: Lease durations that a busy machine can keep.
_ELECTION: Final = (
    *("--leader-elect-lease-duration", "8s"),
    *("--leader-elect-renew-deadline", "6s"),
    *("--leader-elect-retry-period", "1s"),
)


class InstalledOperators:
    """A cluster and its operators: one leads, and the other, which serves the webhooks, is on standby."""

    def __init__(self, kubernetes: Kubernetes, kubeconfig: Path, started: ExitStack) -> None:
        self.kubernetes = kubernetes
        self._kubeconfig = kubeconfig
        self._started = started
        self.asked, self.other = free_port(), free_port()
        self._page_ports = {port: free_port() for port in (self.asked, self.other)}
        self.operators: dict[int, OperatorRun] = {}

    def operate(self, port: int, state: str) -> None:
        """Start an operator, and wait for a state in its log."""
        options = [*_options(port), f"--port={self._page_ports[port]}"]
        self.operators[port] = self._started.enter_context(OperatorRun(self._kubeconfig, *options))
        self.operators[port].wait_until(state, _BEGINS_WITHIN)

    def revive(self) -> None:
        """Restart ended operators, as a kubelet would."""
        for port, operator in list(self.operators.items()):
            if operator.process.poll() is not None:
                self.operate(port, "waiting to lead")

    def leader(self) -> int:
        """The port of the leader; waits for a leader."""
        wait_for(lambda: bool(self._leading()), self.log)
        return self._leading()[0]

    def page(self) -> int:
        """The port of the leader's page; waits for a leader."""
        return self._page_ports[self.leader()]

    def kubectl(self, *arguments: str, sent: str = "", fails: bool = False) -> str:
        """The output of kubectl for the owner; with `fails`, its error."""
        return self.kubernetes.kubectl(*arguments, sent=sent, fails=fails)

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Create objects as the owner; a warning is an error."""
        self.kubectl("create", "--warnings-as-errors", "-f", "-", sent="\n".join(map(json.dumps, objects)))

    def get(self, *named: str) -> Any:
        """An object or a list of objects."""
        return json.loads(self.kubectl("get", *named, "-o", "json"))

    def until(self, what: str, *named: str) -> None:
        """Wait until a JSONPath of an object has a value: `{.a.path}=text`."""
        path, _, text = what.rpartition("=")
        result = ["get", *named, "-o", f"jsonpath={path}"]
        wait_for(lambda: self.kubectl(*result) == text, lambda: f"{self.kubectl(*result)}\n{self.log()}")

    def log_contains(self, text: str, *, any_of: bool = False) -> None:
        """Wait until the log of each operator contains a text, or of one of them."""
        select = any if any_of else all
        wait_for(lambda: select(text in operator.log() for operator in self.operators.values()), self.log)

    def log(self) -> str:
        """The logs of the operators."""
        return "\n".join(operator.log() for operator in self.operators.values())

    def refused(self) -> list[str]:
        """The forbidden requests of the operators."""
        return forbidden_requests(self.kubernetes.audit_log, SETTINGS)

    def invalid(self) -> list[str]:
        """The writes of the operators that Kubernetes rejected as invalid."""
        events = audited_requests(self.kubernetes.audit_log, SETTINGS)
        return [event["requestURI"] for event in events if (event.get("responseStatus") or {}).get("code") == 422]

    def _leading(self) -> list[int]:
        return [
            port
            for port, operator in self.operators.items()
            if operator.process.poll() is None and "runs admission" in operator.log()
        ]


@contextmanager
def install_operators(folder: Path, terms: KubernetesSettings) -> Iterator[InstalledOperators]:
    """Kubernetes with batchyard, as a context manager."""
    with Kubernetes(folder, terms) as kubernetes, ExitStack() as started:
        # The first apply creates the account, its token follows.
        result = InstalledOperators(kubernetes, folder / "token.kubeconfig", started)
        objects = [
            _with_operator_address(obj, result.asked) for obj in manifests(SETTINGS) if obj["kind"] != "Deployment"
        ]
        options = ("--server-side", "--warnings-as-errors")
        kubernetes.kubectl("apply", *options, "-f", "-", sent=yaml.safe_dump_all(objects))
        token = kubernetes.kubectl("create", "token", SETTINGS.name, "-n", SETTINGS.namespace, "--duration=1h")
        kubernetes.kubeconfig_with(token.strip(), SETTINGS.namespace)
        result.operate(result.other, "runs admission")
        result.operate(result.asked, "waiting to lead")
        yield result


def _options(port: int) -> list[str]:
    """The options of the installed pods, except the port of the page."""
    elsewhere = ("--listen", "--port", "--webhook-port", "--log-format")
    result = [each for each in operator_arguments(SETTINGS)[1:] if not each.startswith(elsewhere)]
    return [*result, *_ELECTION, f"--webhook-port={port}"]


def _with_operator_address(obj: Mapping[str, Any], port: int) -> Mapping[str, Any]:
    """The object with the address of an operator instead of that of its pods."""
    result = json.loads(json.dumps(obj))
    if obj["kind"] == "Service" and obj["metadata"]["name"] == SETTINGS.webhook_service:
        return {**result, "spec": _HERE}
    asking = result.get("webhooks") or [(result.get("spec", {}).get("conversion") or {}).get("webhook") or {}]
    for each in asking:
        if "clientConfig" in each:
            each["clientConfig"]["service"]["port"] = port
    return result  # type: ignore[no-any-return]
