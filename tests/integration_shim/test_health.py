"""Probes and hooks of containers: real attempts, with the rules and messages of a kubelet."""

from pathlib import Path
from typing import Any

from integration_shim.machine import ShimMachine, container, shell, state, until, wait_for_phase

QUICK = {"initialDelaySeconds": 0, "periodSeconds": 0.05, "timeoutSeconds": 5}
ONCE = QUICK | {"successThreshold": 1, "failureThreshold": 1}
PLUGGED: dict[str, Any] = {"network": "pod", "address": "10.99.0.5/16", "gateway": "10.99.0.1"}
SERVE = (
    "import http.server as h, os, socketserver\n"
    "class S(h.BaseHTTPRequestHandler):\n"
    " def do_GET(self):\n"
    "  self.send_response(200 if os.path.exists('/volume/well') else 503)\n"
    "  self.send_header('Content-Length', '2'); self.end_headers(); self.wfile.write(b'ok')\n"
    "socketserver.TCPServer(('', 80), S).serve_forever()\n"
)


def execute(script: str, **fields: Any) -> dict[str, Any]:
    return {"exec": {"command": ["sh", "-c", script]}, **ONCE, **fields}


def messages(run: Path) -> list[str]:
    return [f"{warning['reason']}: {warning['message']}" for warning in state(run).get("warnings", [])]


def test_container_fails_after_failure_threshold_of_liveness_probe(node: ShimMachine) -> None:
    node.sandbox()
    probe = execute("echo no; exit 1", failureThreshold=3)
    run = node.start(container("sleep", "600", probes={"liveness": probe}))
    until(lambda: "failed" in state(run), "it has failed")
    assert state(run)["failed"] == {"probe": "liveness", "message": "Liveness probe failed: no\n"}
    assert messages(run) == ["Unhealthy: Liveness probe failed: no\n"] * 3
    assert (state(run)["started"], state(run)["ready"]) == (True, True)


def test_startup_probe_precedes_other_probes(node: ShimMachine) -> None:
    node.sandbox()
    probes = {
        "startup": execute("test -e /tmp/up", failureThreshold=1000),
        "readiness": execute("test -e /tmp/up", periodSeconds=600),
        "liveness": execute("test -e /tmp/up", failureThreshold=1),
    }
    run = node.start(shell("sleep 0.3; touch /tmp/up; sleep 600", probes=probes))
    reported = wait_for_phase(run, "Running")
    assert (reported["started"], reported["ready"]) == (False, False)
    until(lambda: state(run)["started"] and state(run)["ready"], "it has started and is ready")
    assert "failed" not in state(run)


def test_readiness_follows_responses_of_server(node: ShimMachine) -> None:
    volume = node.make("pods/u/volumes/data", 0o777)
    node.sandbox(**PLUGGED)
    probe = {"httpGet": {"path": "health", "port": 80, "scheme": "HTTP"}, **ONCE}
    mount = {"source": "volumes/data", "target": "/volume", "readOnly": False}
    spec = container("python3", "-c", SERVE, network="pod", probes={"readiness": probe}, mounts=[mount])
    run = node.start(spec)
    failed = "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503"
    until(lambda: failed in messages(run), "it fails")
    assert not state(run)["ready"]
    well = volume / "well"
    well.touch()
    until(lambda: state(run)["ready"], "it is ready")
    well.unlink()
    until(lambda: not state(run)["ready"], "it is not")


def test_refused_probe_connection_is_reported_with_go_error_text(node: ShimMachine) -> None:
    node.sandbox(**PLUGGED)
    probes = {
        "readiness": {"httpGet": {"path": "/x", "port": 81}, **ONCE},
        "liveness": {"tcpSocket": {"port": 82}, **ONCE, "failureThreshold": 1000},
    }
    run = node.start(container("sleep", "600", network="pod", probes=probes))
    refused = "connect: connection refused"
    until(lambda: len(set(messages(run))) == 2, "both have failed")
    assert set(messages(run)) == {
        f'Unhealthy: Readiness probe failed: Get "http://10.99.0.5:81/x": dial tcp 10.99.0.5:81: {refused}',
        f"Unhealthy: Liveness probe failed: dial tcp 10.99.0.5:82: {refused}",
    }


def test_exec_probe_times_out(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(container("sleep", "600", probes={"readiness": execute("sleep 600", timeoutSeconds=1)}))
    until(lambda: messages(run), "it has failed")
    assert (
        messages(run)[0] == 'Unhealthy: Readiness probe failed: command timed out: "sh -c sleep 600" timed out after 1s'
    )


def test_exec_probe_runs_in_container_without_capabilities(node: ShimMachine) -> None:
    node.sandbox()
    script = "echo $MARK $HOME $PWD $(hostname) $(ls /tmp) $(grep CapEff /proc/self/status); exit 1"
    probes = {"readiness": execute(script)}
    run = node.start(shell("touch /tmp/mine; sleep 600", environment={"MARK": "m"}, workingDir="/w", probes=probes))
    stated = "Unhealthy: Readiness probe failed: m /root /w p mine CapEff: 0000000000000000\n"
    until(lambda: stated in messages(run), "it has said where it is")


def test_container_is_started_after_successful_post_start_hook(node: ShimMachine) -> None:
    node.sandbox()
    hook = {"exec": {"command": ["sh", "-c", "sleep 0.2; touch /tmp/hooked"]}}
    run = node.start(container("sleep", "600", hooks={"postStart": hook}))
    assert not wait_for_phase(run, "Running")["started"]
    until(lambda: state(run)["started"] and state(run)["ready"], "it has started")
    assert Path(f"/proc/{state(run)['pid']}/root/tmp/hooked").exists()


def test_failed_post_start_hook_is_reported(node: ShimMachine) -> None:
    node.sandbox()
    run = node.start(container("sleep", "600", hooks={"postStart": {"exec": {"command": ["false"]}}}))
    assert until(lambda: state(run).get("failed"), "it has failed")["hook"] == "postStart"
    assert messages(run) == ["FailedPostStartHook: PostStartHook failed"]


def test_pre_stop_hook_runs_before_sigterm(node: ShimMachine) -> None:
    node.sandbox()
    hook = {"exec": {"command": ["sh", "-c", "sleep 0.2; echo hook > /tmp/order"]}}
    script = "trap 'echo term >> /tmp/order; cat /tmp/order; exit 0' TERM; echo up; while :; do sleep 0.01; done"
    run = node.start(shell(script, hooks={"preStop": hook}))
    until(lambda: wait_for_phase(run, "Running") and node.texts(), "it is up")
    node.stop(run)
    assert wait_for_phase(run, "Exited")["exitCode"] == 0
    assert [text for text in node.texts() if text != "Terminated"] == ["up", "hook", "term"]


def test_slow_pre_stop_hook_does_not_extend_grace_period(node: ShimMachine) -> None:
    node.sandbox()
    hook = {"exec": {"command": ["sleep", "600"]}}
    run = node.start(shell("trap '' TERM; while :; do sleep 0.01; done", hooks={"preStop": hook}))
    wait_for_phase(run, "Running")
    node.stop(run, grace=0.3)
    reported = wait_for_phase(run, "Exited")
    assert reported["exitCode"] == 137
    assert reported["finishedAt"] - reported["startedAt"] < 10e6
