"""Logs of simulated pods: contents, options, errors and followed streams."""

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND
from unit.apiserver.api import Api

POD = Key(scheme.POD, "team", "pod")
LOG = "/api/v1/namespaces/team/pods/pod/log"
STARTED = "1970-01-01T00:00:00Z"
ENDED = {"exitCode": 3, "reason": "Error", "startedAt": STARTED, "finishedAt": format_time(90 * SECOND)}


def pod(state: Obj | None = None, last: Obj | None = None, *, containers: tuple[str, ...] = ("main",)) -> Obj:
    """A pod that saves its work every 30 seconds, whose containers all do the same."""
    annotations = {"batchyard.dev/checkpoint-every": "30s", "batchyard.dev/runtime": "90s"}
    annotations["batchyard.dev/exit-code"] = "3"
    metadata = {"name": "pod", "namespace": "team", "uid": "u", "annotations": annotations}
    metadata["creationTimestamp"] = STARTED
    spec = {"nodeName": "node", "containers": [{"name": name, "image": "image"} for name in containers]}
    status = [{"name": name, "state": state, "lastState": last or {}} for name in containers] if state else []
    reported = {"phase": "Running", "containerStatuses": status}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": reported}


def api_with(obj: Obj, seconds: int = 0) -> Api:
    api = Api()
    api.stored.store.put(POD, obj)
    api.pass_time(seconds)
    return api


RUNNING = {"running": {"startedAt": STARTED}}


def words(text: str) -> list[str]:
    """The time of each line in seconds, and its first word."""
    return [f"{line[17:19].lstrip('0') or 0} {line.split()[1]}" for line in text.splitlines()]


def test_log_of_running_container_has_start_and_checkpoints() -> None:
    api = api_with(pod(RUNNING), 70)
    assert words(api.get(LOG)) == ["0 started:", "30 saved:", "0 saved:"]
    assert "works for 90s in all and runs no process" in api.get(LOG)


def test_log_of_failed_container_ends_with_exit_code() -> None:
    text = api_with(pod({"terminated": ENDED}), 200).get(LOG)
    assert text.splitlines()[-1] == "1970-01-01T00:01:30Z failed: exit code 3"
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ("tailLines=1", ["0 saved:"]),
        ("tailLines=0", []),
        ("sinceSeconds=45", ["30 saved:", "0 saved:"]),
        ("sinceTime=1970-01-01T00:00:31Z", ["0 saved:"]),
        ("limitBytes=29", ["0 started:"]),
    ],
)
def test_log_options_limit_lines(asked: str, reported: list[str]) -> None:
    assert words(api_with(pod(RUNNING), 70).get(f"{LOG}?{asked}")) == reported


def test_log_timestamps_have_nine_digits() -> None:
    assert api_with(pod(RUNNING)).get(f"{LOG}?timestamps=true").startswith("1970-01-01T00:00:00.000000000Z ")


@pytest.mark.parametrize(
    ("obj", "asked", "reported"),
    [
        (pod(), "", 'container "main" in pod "pod" is not available'),
        (
            pod({"waiting": {"reason": "ContainerCreating"}}),
            "",
            'container "main" in pod "pod" is waiting to start: ContainerCreating',
        ),
        (pod(RUNNING), "?previous=true", 'previous terminated container "main" in pod "pod" not found'),
        (pod({"terminated": {"exitCode": 137}}), "", 'container "main" in pod "pod" is terminated'),
        (pod(RUNNING), "?container=no", "container no is not valid for pod pod"),
        (
            pod(RUNNING, containers=("a", "b")),
            "",
            "a container name must be specified for pod pod, choose one of: [a b]",
        ),
    ],
)
def test_log_that_is_not_available_returns_reason(obj: Obj, asked: str, reported: str) -> None:
    answer = api_with(obj).ask("GET", LOG + asked)
    assert (answer.code, answer.body["message"]) == (400, reported)


def test_log_of_waiting_container_is_that_of_last_run() -> None:
    text = api_with(pod({"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": ENDED}), 200).get(LOG)
    assert text.splitlines()[-1].endswith("failed: exit code 3")


def test_invalid_log_options_are_reported_together() -> None:
    answer = api_with(pod(RUNNING)).ask("GET", f"{LOG}?tailLines=-1&limitBytes=0")
    assert answer.code == 422
    assert answer.body["message"].startswith('PodLogOptions "pod" is invalid: ')
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["tailLines", "limitBytes"]


def test_log_of_pod_without_node_is_empty() -> None:
    obj = {**pod(), "spec": {"containers": [{"name": "main"}]}}
    assert api_with(obj).ask("GET", LOG).code == 204


def test_followed_log_streams_lines_until_container_ends() -> None:
    api = api_with(pod(RUNNING), 10)
    stream = api.stream(f"{LOG}?follow=true")
    received: list[bytes] = []
    stream.on_new_data = lambda: received.extend(stream.take_buffered_data())
    assert words(b"".join(stream.take_buffered_data()).decode()) == ["0 started:"]
    api.pass_time(60)
    assert words(b"".join(received).decode()) == ["30 saved:", "0 saved:"]
    api.stored.store.put(POD, pod({"terminated": ENDED}))
    assert words(b"".join(received).decode())[2:] == ["30 saved:", "30 failed:"]
    assert stream.is_over


def test_followed_log_ends_when_pod_is_deleted() -> None:
    api = api_with(pod(RUNNING), 10)
    stream = api.stream(f"{LOG}?follow=true")
    stream.take_buffered_data()
    api.stored.store.delete(POD)
    assert words(b"".join(stream.take_buffered_data()).decode()) == ["10 lost:"]
    assert stream.is_over


def test_closed_log_stream_leaves_no_timer() -> None:
    api = api_with(pod(RUNNING), 10)
    stream = api.stream(f"{LOG}?follow=true")
    stream.take_buffered_data()
    stream.end()
    stream.take_buffered_data()
    assert stream.is_over
    assert api.stored.kernel.next_instant() is None


def test_followed_log_ends_with_platform() -> None:
    api = api_with(pod(RUNNING), 10)
    stream = api.stream(f"{LOG}?follow=true")
    api.containers.end()
    assert words(b"".join(stream.take_buffered_data()).decode()) == ["0 started:"]
    assert stream.is_over
    api.containers.end()
    late = api.stream(f"{LOG}?follow=true")
    assert words(b"".join(late.take_buffered_data()).decode()) == ["0 started:"]
    assert late.is_over


def test_init_container_takes_no_time() -> None:
    obj = pod({"terminated": {**ENDED, "exitCode": 0, "finishedAt": STARTED}})
    status = {**obj["status"], "initContainerStatuses": [{**obj["status"]["containerStatuses"][0], "name": "first"}]}
    spec = {**obj["spec"], "initContainers": [{"name": "first", "image": "image"}]}
    text = api_with({**obj, "spec": spec, "status": status}, 200).get(f"{LOG}?container=first")
    assert words(text) == ["0 started:", "0 finished:"]


@pytest.mark.parametrize("part", ["exec", "attach", "portforward", "proxy/metrics"])
def test_simulated_pod_rejects_process_subresources(part: str) -> None:
    answer = api_with(pod(RUNNING)).ask("GET", f"/api/v1/namespaces/team/pods/pod/{part}")
    assert (answer.code, answer.body["message"]) == (400, "pod pod is simulated: it has no process")
