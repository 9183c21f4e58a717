"""Times in responses of a server and in writes of an operator are whole seconds, as in Kubernetes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.store.journal_file import read_journal
from e2e_platform.kill_rounds import PlainHttpClient
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_operator import OPTIONS, finish, operator, submit

_FRACTION: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)")
#: Fields of type MicroTime in Kubernetes.
_FINE: Final = {"Event.eventTime", "Event.lastObservedTime", "Lease.acquireTime", "Lease.renewTime"}


def fractions(value: Any, place: str) -> Iterator[str]:
    """The places of times with fractions of a second."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from fractions(each, f"{place}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from fractions(each, place)
    elif isinstance(value, str) and _FRACTION.fullmatch(value):
        yield place


def lists(url: str) -> Iterator[Any]:
    """The lists of all objects, except kinds of batchyard."""
    with PlainHttpClient(url) as client:
        groups = client.ask("GET", "/apis")[1]["groups"]
        versions = [each["groupVersion"] for group in groups for each in group["versions"]]
        for path in ["/api/v1", *(f"/apis/{each}" for each in versions if "batchyard.dev" not in each)]:
            for resource in client.ask("GET", path)[1]["resources"]:
                if "list" in resource["verbs"] and "/" not in resource["name"]:
                    yield client.ask("GET", f"{path}/{resource['name']}")[1]


class OperatorObjects(NamedTuple):
    """The served and stored objects after an operator admitted two Jobs."""

    #: By kind, in every group that serves it.
    seen: list[tuple[str, list[Any]]]
    stored: list[Any]


@pytest.fixture(scope="module")
def operator_objects(tmp_path_factory: pytest.TempPathFactory) -> OperatorObjects:
    folder = tmp_path_factory.mktemp("times")
    with UpProcess(folder, *OPTIONS) as platform, operator(platform) as running:
        running.wait_until("runs admission")
        submit(platform, range(2))
        finish(platform, 2)
        seen = [(result["kind"].removesuffix("List"), result["items"]) for result in lists(platform.url)]
    return OperatorObjects(seen, [change.obj for change in read_journal(folder / JOURNAL_FILE).store.changes])


def test_served_times_are_whole_seconds_except_micro_times(operator_objects: OperatorObjects) -> None:
    assert {"Workload", "Event", "Pod"} <= {kind for kind, items in operator_objects.seen if items}
    places = {place for kind, items in operator_objects.seen for place in fractions(items, kind)}
    assert {re.sub(r"\..*\.", ".", place) for place in places} <= _FINE


def test_operator_writes_times_in_whole_seconds(operator_objects: OperatorObjects) -> None:
    workloads = [obj for obj in operator_objects.stored if obj["kind"] == "Workload" and obj.get("status")]
    assert {each["type"] for obj in workloads for each in obj["status"]["conditions"]} >= {"Admitted", "Finished"}
    assert not [place for obj in workloads for place in fractions(obj["status"], "status")]
