"""The view `top`: its keys, the settings that they change, and frames that fit the terminal."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

import make
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.cli.daily.top import (
    ScreenSize,
    TopModel,
    UsageBar,
    ViewState,
    draw_frame,
    format_once,
    parse_keys,
    top_model,
)
from batchyard.client.informer import ObjectCache
from batchyard.interfaces.client import EventType, WatchEvent

PENDING_COUNT = 60


def cache_of(*objects: tuple[str, dict[str, Any]]) -> ObjectCache:
    cache = ObjectCache()
    for kind, obj in objects:
        key = Key(kind, obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
        cache.apply_event(WatchEvent(EventType.ADDED, key, obj, None, 0))
    return cache


def queue() -> dict[str, Any]:
    quotas = [{"name": "cpu", "nominalQuota": "4"}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "spot", "resources": quotas}]}]
    usage = [{"name": "spot", "resources": [{"name": "cpu", "total": "3"}]}]
    return {**make.cluster_queue(resourceGroups=groups), "status": {"pendingWorkloads": 60, "flavorsUsage": usage}}


def workload(name: str) -> dict[str, Any]:
    reason = make.condition("QuotaReserved", False, reason="Pending", message="insufficient quota\nfor cpu")
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": make.metadata(name),
        "spec": {"queueName": "lq", "podSets": [make.pod_set()]},
        "status": {"conditions": [reason]},
    }


def node() -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2"}
    return {
        "metadata": make.metadata("node-1", None),
        "status": {"allocatable": allocatable, "conditions": [make.condition("Ready")]},
    }


def pod() -> dict[str, Any]:
    requests = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    return {
        "metadata": make.metadata("pod"),
        "spec": {**make.pod_template(requests)["spec"], "nodeName": "node-1"},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def model() -> TopModel:
    workloads = [(scheme.WORKLOAD, workload(f"w-{number:02}")) for number in range(PENDING_COUNT)]
    objects = [(scheme.CLUSTER_QUEUE, queue()), (scheme.NODE, node()), (scheme.POD, pod()), *workloads]
    return top_model(cache_of(*objects), {}, make.at(90))


def frame(model: TopModel, state: ViewState, width: int, height: int) -> list[str]:
    text = StringIO()
    console = Console(file=text, width=width, height=height, color_system=None)
    console.print(draw_frame(model, state, ScreenSize(width, height)))
    return text.getvalue().splitlines()


def test_sections_have_usage_of_queues_and_nodes(model: TopModel) -> None:
    assert model.summary == "60 waiting, 0 running, 1 of 1 node ready"
    assert model.sections[0].rows[0].cells == ["cq", "spot", "cpu", UsageBar(3000, 4000, "3/4"), "60", "0"]
    state, pods, cpu, memory, devices = model.sections[3].rows[0].cells[1:]
    assert (state, pods, devices) == ("Ready", "1", "nvidia.com/gpu 1/2")
    assert isinstance(cpu, UsageBar)
    assert isinstance(memory, UsageBar)
    assert (cpu.text, memory.text) == ("2/8", "4.0/16.0Gi")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (120, 50), (160, 40), (200, 60)])
@pytest.mark.parametrize("tab", range(4))
def test_frame_fills_the_terminal_exactly(model: TopModel, width: int, height: int, tab: int) -> None:
    lines = frame(model, ViewState(tab=tab), width, height)
    assert len(lines) <= height
    assert len(lines) >= height - 1
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quit")


def test_long_section_is_cut_and_scrolled(model: TopModel) -> None:
    lines = frame(model, ViewState(tab=1), 80, 24)
    assert lines[-2].startswith("... 41 more")
    lines = frame(model, ViewState(tab=1, first_row=1000), 80, 24)
    assert lines[-2].startswith("workload/w-59")


def test_filter_keeps_matching_rows_and_counts_them(model: TopModel) -> None:
    lines = frame(model, ViewState(tab=1, filter_text="W-07"), 80, 24)
    assert "[Waiting 1]" in lines[1]
    assert lines[3].startswith("workload/w-07")
    assert frame(model, ViewState(tab=1, filter_text="none"), 80, 24)[3].startswith("nothing matches")


def test_forbidden_kind_is_reported_in_its_section() -> None:
    model = top_model(cache_of(), {scheme.NODE: "no permission to list nodes"}, make.NOW)
    assert frame(model, ViewState(tab=3), 80, 24)[3].startswith("no permission to list nodes")


def test_pause_is_visible_on_small_terminal(model: TopModel) -> None:
    assert " paused " in frame(model, ViewState(is_paused=True), 80, 24)[0]


def test_lost_server_is_reported_below_the_last_known_rows() -> None:
    model = top_model(cache_of((scheme.NODE, node())), {scheme.NODE: "no answer: connection refused"}, make.NOW)
    assert frame(model, ViewState(), 80, 24)[-1].startswith("q quit  not up to date: no answer: connection refused")


def test_once_prints_all_rows_as_plain_text(model: TopModel) -> None:
    text = format_once(model, 160)
    assert text.count("workload/w-") == PENDING_COUNT
    assert "\x1b" not in text
    assert "insufficient quota for cpu" in text


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\t\x1b[Z", ["up", "down", "tab", "back-tab"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[5~\x1b[15~p", ["page-up", "p"]),
        ("/é\x7f\r".encode(), ["/", "é", "backspace", "enter"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\xff", []),
    ],
)
def test_bytes_of_terminal_become_keys(sent: bytes, keys: list[str]) -> None:
    assert list(parse_keys(sent)) == keys


def after(keys: str) -> ViewState:
    state = ViewState()
    for key in parse_keys(keys.encode()):
        state = state.after_key(key)
    return state


def test_keys_change_the_choices() -> None:
    assert after("\t\t").tab == 2
    assert after("\x1b[D").tab == 3
    assert after("3\x1b[B\x1b[B").first_row == 2
    assert after("3\x1b[B\x1b[B\t").first_row == 0
    assert after("p").is_paused
    assert not after("pp").is_paused
    assert after("q").has_quit


def test_typed_filter_may_contain_command_keys() -> None:
    assert after("/qpp\x7f\r") == ViewState(filter_text="qp")
    assert after("/qp") == ViewState(filter_text="qp", is_typing=True)
    assert after("/q\x1b") == ViewState()
    assert after("/q\r\x1b") == ViewState()
    assert len(after("/" + "x" * 1000).filter_text) == 60
