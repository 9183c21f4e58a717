"""The decision ledger, as objects of the API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, key_of
from batchyard.apiserver.auth.authorization import Authorizer, RbacAuthorizer
from batchyard.apiserver.request import UserInfo
from batchyard.apiserver.subresources.queueing import decisions_resource
from batchyard.base.instant import SECOND
from batchyard.interfaces.controller import DecisionRecord
from batchyard.server.logging.ledger import LedgerFile
from unit.apiserver import roles
from unit.apiserver.api import Api

GROUP = "/apis/batchyard.dev/v1alpha1"
OF_TEAM = f"{GROUP}/namespaces/team/decisions"
WORKLOAD = Key(scheme.WORKLOAD, "team", "job-train-12345")
OTHERS = [
    Key(scheme.JOB, "team", "train"),
    Key(scheme.CLUSTER_QUEUE, "", "cq"),
    Key(scheme.WORKLOAD, "other", "job-train-54321"),
    Key("Rocket.space.example.com", "team", "ariane"),
]
DETAILS = {
    "preemptor": {"workload": "other/boss", "uid": "u", "priority": 9},
    "targets": [{"workload": "team/job-train-12345", "uid": "v"}],
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """An API with a ledger of five entries, a second apart; ann may read the decisions of `team`."""
    api, ledger = Api(), LedgerFile(tmp_path / "decisions.db")
    reported = [(WORKLOAD, "Preempted", DETAILS), *[(key, "Other", {}) for key in OTHERS]]
    records = [
        DecisionRecord(place, place * SECOND, "scheduler", key, "Normal", reason, "told", details)
        for place, (key, reason, details) in enumerate(reported, 1)
    ]
    ledger.append(records)
    view = roles.role("sees", roles.rule("get list", "decisions", "batchyard.dev"), namespace="team")
    for obj in (view, roles.binding("ann", "Role/sees", roles.user("ann"), "team")):
        api.stored.store.put(key_of(obj), obj)
    rbac: Authorizer = RbacAuthorizer(api.stored)
    api.resources.serve_always(decisions_resource(ledger, rbac, api.stored.kernel.now))
    yield api
    ledger.close()


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


def test_decision_is_in_namespace_of_regarding_object(api: Api) -> None:
    assert names(api.get(f"{GROUP}/decisions")) == ["1", "2", "3", "4", "5"]
    assert names(api.get(OF_TEAM)) == ["1", "2", "5"]
    assert names(api.get(f"{GROUP}/namespaces/default/decisions")) == ["3"]
    result = api.get(f"{OF_TEAM}/1")
    assert result["regarding"] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "namespace": "team",
        "name": "job-train-12345",
    }
    assert (result["time"], result["details"]) == ("1970-01-01T00:00:01Z", DETAILS)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("fieldSelector=reason=Preempted", ["1"], id="reason"),
        pytest.param("fieldSelector=reason!=Preempted", ["2", "5"], id="another reason"),
        pytest.param("fieldSelector=regarding.kind=Rocket", ["5"], id="kind"),
        pytest.param("fieldSelector=regarding.name=train", ["2"], id="name"),
        pytest.param("about=job/train", ["1", "2"], id="a Job and its Workload"),
        pytest.param("about=wl/x", None, id="no such kind"),
        pytest.param("about=workloads/job-train-12345", ["1"], id="plural"),
        pytest.param("about=workloads/*", None, id="no name"),
        pytest.param("since=1970-01-01T00:00:02Z", ["2", "5"], id="since"),
        pytest.param("until=1970-01-01T00:00:02Z", ["1"], id="until"),
        pytest.param("until=now", None, id="no time"),
        pytest.param("limit=1", ["5"], id="limit"),
        pytest.param("limit=-1", None, id="no limit"),
    ],
)
def test_query_filters_decisions(api: Api, query: str, expected: list[str] | None) -> None:
    answer = api.ask("GET", f"{OF_TEAM}?{query}")
    assert (names(answer.body) if answer.code == 200 else None) == expected
    assert answer.code in {200, 400}


@pytest.mark.parametrize(("name", "code"), [("1", 200), ("3", 404), ("99", 404), ("x", 404), ("9" * 40, 404)])
def test_decision_is_found_in_its_own_namespace_only(api: Api, name: str, code: int) -> None:
    assert api.ask("GET", f"{OF_TEAM}/{name}").code == code


def test_decisions_reject_create_and_watch(api: Api) -> None:
    assert api.ask("POST", OF_TEAM, {}).code == 405
    assert api.ask("GET", f"{OF_TEAM}?watch=true").code == 405
    assert api.ask("GET", f"{OF_TEAM}/1?watch=true").code == 200


def test_decision_hides_names_of_workloads_that_user_cannot_read(api: Api) -> None:
    ann = UserInfo("ann", ())
    assert api.ask("GET", f"{GROUP}/decisions", user=ann).code == 403
    (reported,) = [each for each in api.ask("GET", OF_TEAM, user=ann).body["items"] if "details" in each]
    assert reported["details"] == {
        "preemptor": {"priority": 9},
        "targets": [{"workload": "team/job-train-12345", "uid": "v"}],
    }


def test_decisions_are_served_as_table(api: Api) -> None:
    table = api.get(OF_TEAM, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert [column["name"] for column in table["columnDefinitions"]][:4] == ["Name", "Age", "Object", "Reason"]
    assert table["rows"][0]["cells"][:4] == ["1", "0s", "workload/job-train-12345", "Preempted"]
