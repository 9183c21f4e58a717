"""The API server of Kubernetes with etcd, and with its controllers if they are installed, for a test.

Programs are found as by envtest of controller-runtime: in the folder KUBEBUILDER_ASSETS, else on PATH.
"""

import http.client
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

import yaml

from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority
from e2e_platform.operator_process import free_port
from e2e_platform.platform_process import kubectl

NEEDED: Final = ("etcd", "kube-apiserver", "kubectl")
#: The programs that run Jobs, collect garbage and schedule pods. envtest lacks them.
CONTROLLERS: Final = ("kube-controller-manager", "kube-scheduler")
_STARTS_WITHIN: Final = 120.0  # seconds
_ENDS_WITHIN: Final = 30.0
_AUDIT: Final = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
_ISSUER: Final = "https://kubernetes.default.svc"


def program(name: str) -> str | None:
    """The path of a program, or None."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return (shutil.which(name, path=folder) if folder else None) or shutil.which(name)


def missing(names: Sequence[str]) -> str:
    """The missing programs as a reason to skip a test, or ''."""
    absent = [name for name in names if program(name) is None]
    return f"neither in KUBEBUILDER_ASSETS nor on PATH: {', '.join(absent)}" if absent else ""


class KubernetesSettings(NamedTuple):
    """Additional settings of a cluster."""

    #: Admission plugins in addition to the defaults.
    plugins: Sequence[str] = ("OwnerReferencesPermissionEnforcement",)
    controllers: bool = False
    #: Further arguments of the API server.
    arguments: Sequence[str] = ()


class Kubernetes:
    """An API server and etcd on this machine; they run within the context."""

    def __init__(self, folder: Path, terms: KubernetesSettings | None = None) -> None:
        self._folder, self._terms = folder, terms or KubernetesSettings()
        self._running = ExitStack()
        self._etcd = f"http://127.0.0.1:{free_port()}"
        self.url = f"https://127.0.0.1:{free_port()}"
        self.audit_log = folder / "audit.log"
        self.authority = CertificateAuthority(folder, wall_clock())
        self.kubeconfig = self.kubeconfig_of("admin", "system:masters")
        self.kubeconfig_of("tokens")  # its key signs the tokens of ServiceAccounts
        self._server: LoggedProcess | None = None

    def __enter__(self) -> Self:
        peers = f"http://127.0.0.1:{free_port()}"
        etcd = ("--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync", "--listen-client-urls", self._etcd)
        with ExitStack() as started:
            self._running = started
            self.start("etcd", *etcd, "--advertise-client-urls", self._etcd, "--listen-peer-urls", peers)
            self.serve()
            for name in CONTROLLERS if self._terms.controllers else ():
                self._start_controllers(name)
            self._running = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(self, name: str, *arguments: str) -> "LoggedProcess":
        """Start a program that ends with the cluster; its output goes to a file."""
        result = program(name)
        assert result is not None, name
        return self._running.enter_context(LoggedProcess([result, *arguments], self._folder / f"{name}.log"))

    def serve(self) -> None:
        """Start the API server, and wait until it is ready."""
        self._server = self.start("kube-apiserver", *self._arguments(), *self._terms.arguments)
        self._server.wait_until(self._is_ready)

    def stop_serving(self) -> None:
        """Stop the API server at once."""
        assert self._server is not None
        self._server.kill()

    def kubectl(self, *arguments: str, sent: str = "", fails: bool = False) -> str:
        """The output of kubectl for the owner; with `fails`, its error."""
        return kubectl(self.kubeconfig, *arguments, sent=sent, fails=fails)

    def kubeconfig_of(self, user: str, *groups: str) -> Path:
        """The kubeconfig with a certificate of a user."""
        signed = self.authority.issue_client_certificate(user, groups)
        name = user.replace(":", "-")
        certificate = self._written(f"{name}.crt", signed.certificate)
        key = self._written(f"{name}.key", signed.key)
        named = {"client-certificate": str(certificate), "client-key": str(key)}
        return self._kubeconfig(user, named)

    def kubeconfig_with(self, token: str, namespace: str = "default") -> Path:
        """The kubeconfig with a token."""
        return self._kubeconfig("token", {"token": token}, namespace)

    def _kubeconfig(self, user: str, named: dict[str, str], namespace: str = "default") -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.authority.certificate_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "a", "cluster": cluster}],
            "users": [{"name": "a", "user": named}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": namespace}}],
            "current-context": "a",
        }
        return self._written(f"{user.replace(':', '-')}.kubeconfig", yaml.safe_dump(config).encode())

    def _arguments(self) -> Iterator[str]:
        server = self.authority.issue_server_certificate(("127.0.0.1", "localhost"))
        yield from (f"--etcd-servers={self._etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1")
        yield f"--secure-port={self.url.rpartition(':')[2]}"
        yield f"--cert-dir={self._folder}"
        yield f"--tls-cert-file={self._written('server.crt', server.certificate)}"
        yield f"--tls-private-key-file={self._written('server.key', server.key)}"
        yield f"--client-ca-file={self.authority.certificate_file}"
        yield f"--service-account-issuer={_ISSUER}"
        yield f"--service-account-key-file={self._folder / 'tokens.crt'}"
        yield f"--service-account-signing-key-file={self._folder / 'tokens.key'}"
        yield from ("--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none")
        yield from ("--authorization-mode=RBAC", "--profiling=false")
        yield f"--enable-admission-plugins={','.join(self._terms.plugins)}"
        yield f"--audit-log-path={self.audit_log}"
        yield f"--audit-policy-file={self._written('audit.yaml', yaml.safe_dump(_AUDIT).encode())}"

    def _start_controllers(self, name: str) -> None:
        kubeconfig = self.kubeconfig_of(f"system:{name}")
        common = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
        if name == "kube-controller-manager":
            tokens = f"--service-account-private-key-file={self._folder / 'tokens.key'}"
            root = f"--root-ca-file={self.authority.certificate_file}"
            # The nodes of a test send no heartbeats.
            patient = "--node-monitor-grace-period=1h"
            self.start(name, *common, tokens, root, patient, "--use-service-account-credentials")
        else:
            self.start(name, *common)

    def _written(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path

    def _is_ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.authority.certificate_file))
        connection = http.client.HTTPSConnection(self.url.rpartition("/")[2], context=context, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class LoggedProcess:
    """A running program that ends with its test."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds while the program runs."""
        wait_for(partial(self._holds, holds), self._tail)

    def kill(self) -> None:
        """Kill the program."""
        self._process.kill()
        self._process.wait(_ENDS_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()

    def _holds(self, holds: Callable[[], bool]) -> bool:
        assert self._process.poll() is None, f"it has ended: {self._tail()}"
        return holds()

    def _tail(self) -> str:
        return self._log.read_text("utf-8", "replace")[-4000:]


def wait_for(holds: Callable[[], bool], reported: Callable[[], str] = str, within: float = _STARTS_WITHIN) -> None:
    """Wait until a condition holds; `reported` gives details for the failure."""
    pause, tries = threading.Event(), int(within * 10)
    for _ in range(tries):
        if holds():
            return
        pause.wait(0.1)
    raise AssertionError(f"the condition did not hold before the timeout: {reported()}")
