"""Sessions with local pods: exec, cp, attach and port-forward, with kubectl and from Python."""

import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubernetes import client, config, stream

from e2e_local_pods.node import PATIENCE, local_platform, script, wait_for
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
WITHOUT_WEBSOCKETS = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
#: Waits until the terminal has the size set in the test: kubectl sends another size first.
SIZED = "until stty size | grep -q '^31 97$'; do sleep 0.1; done; echo si''zed;"
SERVER = """
import socketserver
class LargeResponseHandler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + b"x" * 300000)
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), LargeResponseHandler).serve_forever()
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform with two running pods."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        started.kubectl("wait", "node", "--all", "--for=condition=Ready", PATIENCE)
        container = {"env": [{"name": "OWN", "value": "its own"}], "workingDir": "/data"}
        started.kubectl("create", "-f", "-", sent=script("idle", "sleep 1000", container=container))
        served = {"command": ["python3", "-c", SERVER]}
        started.kubectl("create", "-f", "-", sent=script("server", "", container=served))
        wait_for(started, "idle", "Running")
        wait_for(started, "server", "Running")
        yield started


def run(
    platform: UpProcess, *arguments: str, sent: bytes = b"", **variables: str
) -> "subprocess.CompletedProcess[bytes]":
    """The result of a kubectl command."""
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig), **variables}
    command = ["kubectl", *arguments]
    return subprocess.run(command, input=sent, capture_output=True, env=environment, timeout=60, check=False)


@contextmanager
def child(platform: UpProcess, *arguments: str, **variables: str) -> "Iterator[subprocess.Popen[str]]":
    """A running kubectl, which is killed at the end."""
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig), **variables}
    pipe = subprocess.PIPE
    with subprocess.Popen(["kubectl", *arguments], stdout=pipe, stderr=pipe, env=environment, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.fixture
def core(platform: UpProcess) -> Iterator[client.CoreV1Api]:
    """The Python client of the platform."""
    with config.new_client_from_config(str(platform.kubeconfig)) as api:  # type: ignore[no-untyped-call]
        yield client.CoreV1Api(api)


def processes(platform: UpProcess, pattern: str) -> list[str]:
    """The processes of the pod `idle` with a command line."""
    done = run(platform, "exec", "idle", "--", "pgrep", "-xf", pattern)
    return done.stdout.decode().split()


def test_exec_uses_environment_and_working_directory_of_container(platform: UpProcess) -> None:
    done = run(platform, "exec", "idle", "--", "sh", "-c", 'echo "$OWN in $(pwd)"; echo aside >&2; exit 3')
    assert (done.stdout, done.returncode) == (b"its own in /data\n", 3)
    assert done.stderr == b"aside\ncommand terminated with exit code 3\n"


def test_exec_passes_whole_stdin(platform: UpProcess) -> None:
    sent = bytes(range(251)) * 12_000
    assert run(platform, "exec", "-i", "idle", "--", "cat", sent=sent).stdout == sent


def test_exec_works_without_websockets(platform: UpProcess) -> None:
    command = ("exec", "-i", "idle", "--", "sh", "-c", "cat; exit 4")
    done = run(platform, *command, sent=b"told", **WITHOUT_WEBSOCKETS)
    assert (done.stdout, done.returncode) == (b"told", 4)


def test_exec_of_missing_command_reports_upstream_error(platform: UpProcess) -> None:
    done = run(platform, "exec", "idle", "--", "nosuch")
    assert done.stderr.startswith(
        b"error: Internal error occurred: error executing command in container: failed to exec"
    )
    assert b'exec: "nosuch": executable file not found in $PATH' in done.stderr


def test_exec_is_forbidden_without_create_permission(platform: UpProcess) -> None:
    platform.kubectl("create", "role", "looks", "--verb=get", "--resource=pods,pods/exec")
    platform.kubectl("create", "rolebinding", "looks", "--role=looks", "--user=reader")
    done = run(platform, "exec", "idle", "--as=reader", "--", "true")
    assert b'User "reader" cannot create resource "pods/exec" in API group ""' in done.stderr


@pytest.mark.parametrize(
    ("asked", "stated"),
    [
        ("exec?command=true&stdout=1", "Upgrade request required"),
        ("exec?command=true&stdout=1&container=other", "container other is not valid for pod idle"),
        ("portforward", "Upgrade request required"),
    ],
)
def test_invalid_session_request_is_rejected(platform: UpProcess, asked: str, stated: str) -> None:
    path = f"/api/v1/namespaces/default/pods/idle/{asked}"
    assert stated in platform.kubectl("get", "--raw", path, fails=True)


def test_exec_in_terminated_container_fails_with_not_found(platform: UpProcess) -> None:
    platform.kubectl("create", "-f", "-", sent=script("over", "true", restartPolicy="Always"))
    waiting = "{.status.containerStatuses[0].state.waiting.reason}"
    platform.kubectl("wait", "pod/over", f"--for=jsonpath={waiting}=CrashLoopBackOff", PATIENCE)
    done = run(platform, "exec", "over", "--", "true")
    assert b'unable to upgrade connection: container not found ("main")' in done.stderr
    platform.kubectl("delete", "pod", "over", PATIENCE)


def test_exec_terminal_has_its_size_and_handles_interrupt_key(platform: UpProcess) -> None:
    request = f"trap 'echo interrupted; exit 6' INT; {SIZED} while :; do sleep 0.1; done"
    with in_terminal(platform, "exec", "-it", "idle", "--", "sh", "-c", request) as (terminal, talking):
        read_until(terminal, b"sized")
        os.write(terminal, b"\x03")
        read_until(terminal, b"interrupted")
        assert talking.wait(60) == 6


def test_kubectl_copies_files_to_and_from_pod(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(range(251)) * 4_000)
    # The container of an ordinary user has no other user to own the file.
    options = ("--no-preserve",) if os.geteuid() != 0 else ()
    platform.kubectl("cp", *options, str(tmp_path / "there"), "idle:/tmp/copied")
    platform.kubectl("cp", "idle:/tmp/copied", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_exec_processes_end_when_client_disconnects(platform: UpProcess) -> None:
    command = ("exec", "idle", "--", "sh", "-c", "(setsid sleep 4242 &); echo up; sleep 4242")
    with child(platform, *command) as talking:
        assert talking.stdout is not None
        assert talking.stdout.readline() == "up\n"
        assert processes(platform, "sleep 4242")
    for _ in range(100):
        if not processes(platform, "sleep 4242"):
            return
    pytest.fail("the process of the session is still running")


def test_background_process_survives_end_of_exec(platform: UpProcess) -> None:
    left = "nohup sleep 2424 >/dev/null 2>&1 & until pgrep -xf 'sleep 2424'; do sleep 0.1; done"
    assert run(platform, "exec", "idle", "--", "sh", "-c", left).returncode == 0
    assert len(processes(platform, "sleep 2424")) == 1


def test_kubectl_run_attaches_to_stdin_and_output_of_container(platform: UpProcess) -> None:
    command = ("run", "asked", "-i", "--rm", "--restart=Never", "--image=machine", "--command", "--", "sh", "-c")
    done = run(platform, *command, "cat; echo aside >&2; exit 5", sent=b"told\n")
    assert done.stdout.startswith(b"told\n")
    assert (b"aside" in done.stderr, done.returncode) == (True, 5)


def test_kubectl_run_attaches_to_terminal_of_container(platform: UpProcess) -> None:
    command = ("run", "typed", "-it", "--rm", "--restart=Never", "--image=machine", "--command", "--", "bash")
    with in_terminal(platform, *command) as (terminal, talking):
        read_until(terminal, b"try pressing enter")
        os.write(terminal, SIZED.encode() + b"exit 7\n")
        read_until(terminal, b"sized")
        assert talking.wait(60) == 7


@pytest.mark.parametrize("variables", [{}, WITHOUT_WEBSOCKETS], ids=["websockets", "SPDY"])
def test_kubectl_forwards_port(platform: UpProcess, variables: dict[str, str]) -> None:
    with child(platform, "port-forward", "pod/server", ":8000", **variables) as forwarding:
        assert forwarding.stdout is not None
        address = forwarding.stdout.readline().split()[2]
        for _ in range(3):
            with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
                assert len(answer.read()) == 300_000


def test_debug_starts_an_ephemeral_container_once(platform: UpProcess) -> None:
    image = platform.kubectl("get", "pod", "idle", "-o", "jsonpath={.spec.containers[0].image}")
    command = ("--", "sh", "-c", "echo found; exit 3")
    platform.kubectl("debug", "idle", f"--image={image}", "--container=debugger", *command)
    path = "{.status.ephemeralContainerStatuses[0].state.terminated.exitCode}"
    platform.kubectl("wait", "pod/idle", f"--for=jsonpath={path}=3", PATIENCE)
    assert platform.kubectl("logs", "idle", "-c", "debugger") == "found\n"
    platform.kubectl("debug", "idle", f"--image={image}", "--container=second", "--", "sleep", "1000")
    path = "{.status.ephemeralContainerStatuses[1].state.running}"
    platform.kubectl("wait", "pod/idle", f"--for=jsonpath={path}", PATIENCE)
    assert run(platform, "exec", "idle", "-c", "second", "--", "echo", "in it").stdout == b"in it\n"
    pod = json.loads(platform.kubectl("get", "pod", "idle", "-o", "json"))
    assert [each["restartCount"] for each in pod["status"]["ephemeralContainerStatuses"]] == [0, 0]
    assert pod["status"]["phase"] == "Running"
    assert platform.kubectl("get", "pod", "idle", "--no-headers").split()[1] == "1/1"


def test_proxy_reaches_the_port_of_a_pod_and_of_a_service(platform: UpProcess) -> None:
    path = "/api/v1/namespaces/default"
    platform.kubectl("label", "pod", "server", "app=server")
    platform.kubectl("create", "service", "clusterip", "server", "--tcp=80:8000")
    for target in ("pods/server:8000", "services/server:80", "services/server:80-8000"):
        assert run(platform, "get", "--raw", f"{path}/{target}/proxy/page?q=1").stdout == b"x" * 300000, target
    failed = run(platform, "get", "--raw", f"{path}/pods/server:9/proxy/")
    assert b"(ServiceUnavailable): error trying to reach service" in failed.stderr
    assert b"dial tcp4 127.0.0.1:9: connect: connection refused" in failed.stderr


def test_forwarding_to_closed_port_reports_connection_refused(platform: UpProcess) -> None:
    with child(platform, "port-forward", "pod/server", ":9") as forwarding:
        assert forwarding.stdout is not None
        host, _, port = forwarding.stdout.readline().split()[2].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            assert connection.recv(1) == b""
        stated = forwarding.communicate(timeout=60)[1]
    assert "error forwarding port 9 to pod server" in stated
    assert "connect: connection refused" in stated


def test_python_client_executes_command(core: client.CoreV1Api) -> None:
    session = stream.stream(
        core.connect_get_namespaced_pod_exec,
        "idle",
        "default",
        command=["sh", "-c", "read line; echo got $line; exit 8"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), True),
        _preload_content=False,
    )
    session.write_stdin("this\n")
    session.run_forever(60)
    session.sock.shutdown()  # the client leaves a connection open that the server has ended
    assert (session.read_stdout(), session.returncode) == ("got this\n", 8)


def test_python_client_forwards_ports(core: client.CoreV1Api) -> None:
    forwarded = stream.portforward(core.connect_get_namespaced_pod_portforward, "server", "default", ports="8000,9")
    connection = forwarded.socket(8000)
    connection.setblocking(True)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    received = 0
    while part := connection.recv(65536):
        received += len(part)
    forwarded.close()
    forwarded.websocket.shutdown()
    assert received > 300_000
    assert forwarded.error(8000) is None
    assert "connection refused" in forwarded.error(9)


#: A separate process, because kr8s leaves its connections open.
FORWARDING = """
import sys, urllib.request
import kr8s
api = kr8s.api(kubeconfig=sys.argv[1])
pod = next(iter(api.get("pods", "server", namespace="default")))
with pod.portforward(8000, local_port=None) as port:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        print(len(answer.read()))
"""


def test_kr8s_forwards_ports_without_naming_a_protocol(platform: UpProcess) -> None:
    command = [sys.executable, "-c", FORWARDING, str(platform.kubeconfig)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "300000\n"


def test_metrics_api_reports_usage_of_pods_and_node(platform: UpProcess) -> None:
    result: dict[str, dict[str, object]] = {}
    while "server" not in result:  # a pod that has just started has no metrics
        items = json.loads(platform.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/pods"))["items"]
        result = {item["metadata"]["name"]: item for item in items}
    assert result["server"]["window"] != "0s"
    assert "Mi" in platform.kubectl("top", "pod", "server", "--no-headers")
    assert "Mi" in platform.kubectl("top", "node", "--no-headers")


@contextmanager
def in_terminal(platform: UpProcess, *arguments: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """A kubectl in a terminal of 31 rows and 97 columns."""
    terminal, its_end = pty.openpty()
    subprocess.run(["stty", "rows", "31", "cols", "97"], stdin=its_end, check=True)
    environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig)}
    command = ["kubectl", *arguments]
    with subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end, env=environment) as started:
        os.close(its_end)
        try:
            yield terminal, started
        finally:
            started.kill()
            os.close(terminal)


def read_until(terminal: int, text: bytes) -> None:
    """Read the terminal until it shows a text."""
    shown = b""
    while text not in shown:
        assert select.select([terminal], [], [], 60)[0], shown
        shown += os.read(terminal, 65536)
