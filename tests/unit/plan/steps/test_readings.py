"""How answers of terraform, gcloud and kubectl are read; the texts are theirs."""

import json
from typing import Any

import pytest

from batchyard.provision.steps.google import nothing_is_protected
from batchyard.provision.steps.model import Answer, Reading, Retry, Seen
from batchyard.provision.steps.probe_parsers import (
    all_are,
    diff_is_empty,
    fails,
    has_quota,
    is_version,
    lists_all,
    none_is,
    plan_is_empty,
    prints_anything,
    prints_nothing,
    says,
    succeeds,
)

NOT_SERVED = Answer(1, "", 'error: the server doesn\'t have a resource type "clusterqueues"\n')
REFUSED = Answer(
    1, "", "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n"
)
PLAN = "Terraform will perform ...\n\nPlan: 87 to add, 0 to change, 0 to destroy.\n\nSaved the plan to: x\n"
LOCKED = "╷\n│ Error: Error acquiring the state lock\n│ \n│ Error message: writing ...\n╵\n"
DIFF = "diff -u -N /tmp/LIVE-1/a /tmp/MERGED-1/a\n--- x\n+++ y\ndiff -u -N /tmp/LIVE-1/b /tmp/MERGED-1/b\n"


def objects(*rows: dict[str, Any]) -> Answer:
    return Answer(0, json.dumps({"kind": "List", "items": list(rows)}))


def queue(name: str, active: str, message: str = "", namespace: str = "") -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {
        "metadata": {"name": name, **where},
        "status": {"conditions": [{"type": "Active", "status": active, "reason": "R", "message": message}]},
    }


@pytest.mark.parametrize(
    ("reading", "answer", "seen"),
    [
        pytest.param(succeeds(), Answer(0, "ok"), Seen(True), id="success"),
        pytest.param(succeeds(), REFUSED, Seen(False, REFUSED.told.strip()), id="no server"),
        pytest.param(fails("it is"), Answer(0, ""), Seen(False, "it is"), id="what should fail"),
        pytest.param(prints_anything("nobody"), Answer(0, "\n"), Seen(False, "nobody"), id="nothing printed"),
        pytest.param(prints_anything("nobody"), Answer(0, "me@x\nyou@x\n"), Seen(True, "me@x"), id="something printed"),
        pytest.param(prints_nothing("left"), Answer(0, "job.batch/a\n"), Seen(False, "left: 1"), id="one left"),
        pytest.param(prints_nothing("left"), NOT_SERVED, Seen(True), id="kind not served"),
        pytest.param(prints_nothing("left"), REFUSED, Seen(False, REFUSED.told.strip()), id="left, and no server"),
        pytest.param(lists_all(["a", "b"]), Answer(0, "c\na\n"), Seen(False, "not enabled: b"), id="one lacking"),
        pytest.param(lists_all(["a"]), Answer(0, "a\n"), Seen(True, "1 enabled"), id="all listed"),
        pytest.param(says("on", True, "off"), Answer(0, '{"on": false}'), Seen(False, "off"), id="field says no"),
        pytest.param(says("on", True, "off"), Answer(0, '{"on": true}'), Seen(True), id="field says yes"),
        pytest.param(is_version(["v"], (1, 9)), Answer(0, '{"v": "1.11.4"}'), Seen(True, "1.11.4"), id="newer"),
        pytest.param(
            is_version(["v"], (1, 28)), Answer(0, '{"v": "v1.32.4-dispatcher"}'), Seen(True, "1.32.4"), id="v"
        ),
        pytest.param(
            is_version(["v"], (1, 9)),
            Answer(0, '{"v": "1.5.7"}'),
            Seen(False, "it is 1.5.7; at least 1.9 is required"),
            id="old",
        ),
        pytest.param(plan_is_empty, Answer(0, "No changes."), Seen(True, "no changes"), id="nothing planned"),
        pytest.param(plan_is_empty, Answer(2, PLAN), Seen(False, "87 to add, 0 to change, 0 to destroy"), id="a plan"),
        pytest.param(
            plan_is_empty, Answer(1, "", LOCKED), Seen(False, "Error: Error acquiring the state lock"), id="locked"
        ),
        pytest.param(diff_is_empty, Answer(0, ""), Seen(True, "as rendered"), id="no diff"),
        pytest.param(diff_is_empty, Answer(1, DIFF), Seen(False, "2 objects to write"), id="two differ"),
        pytest.param(diff_is_empty, REFUSED, Seen(False, REFUSED.told.strip()), id="no diff without a server"),
    ],
)
def test_an_answer_is_read(reading: Reading, answer: Answer, seen: Seen) -> None:
    assert reading(answer) == seen


def test_each_that_is_wanted_must_have_the_condition() -> None:
    answer = objects(
        queue("a", "True"), queue("b", "False", "Can't admit: FlavorNotFound"), queue("of-others", "False")
    )
    assert all_are("Active", ["a"])(answer) == Seen(True, "1 Active")
    assert all_are("Active", ["a", "b"])(answer) == Seen(False, "b: Can't admit: FlavorNotFound")
    assert all_are("Active", ["c"])(answer) == Seen(False, "c: not there")


def test_what_is_in_namespaces_is_told_apart_by_them() -> None:
    answer = objects(queue("lq", "True", namespace="x"), queue("lq", "False", "no", namespace="y"))
    assert all_are("Active", ["x/lq"])(answer).is_so
    assert all_are("Active", ["y/lq"])(answer) == Seen(False, "y/lq: no")


def test_one_object_is_read_as_a_list_of_one() -> None:
    assert all_are("Active", ["a"])(Answer(0, json.dumps(queue("a", "True")))).is_so


@pytest.mark.parametrize(
    ("conditions", "is_so"),
    [([("Admitted", "True")], True), ([("Admitted", "True"), ("Finished", "True")], False), ([], False)],
)
def test_what_has_quota_runs_until_it_ends(conditions: list[tuple[str, str]], is_so: bool) -> None:
    rows = [{"type": kind, "status": status} for kind, status in conditions]
    assert has_quota({"status": {"conditions": rows}}) is is_so


def test_what_runs_is_named() -> None:
    running = {
        "metadata": {"name": "w", "namespace": "n"},
        "status": {"conditions": [{"type": "Admitted", "status": "True"}]},
    }
    assert none_is(has_quota, "running")(objects(running)) == Seen(False, "running: 1 (n/w)")
    assert none_is(has_quota, "running")(Answer(0, "")) == Seen(True)
    assert none_is(has_quota, "running")(NOT_SERVED) == Seen(True)
    assert not none_is(has_quota, "running")(REFUSED).is_so


def test_a_protected_cluster_is_found_in_whichever_module_it_is() -> None:
    cluster = {"address": "module.cluster.c", "values": {"deletion_protection": True}}
    deep = {"values": {"root_module": {"child_modules": [{"child_modules": [{"resources": [cluster]}]}]}}}
    assert nothing_is_protected(Answer(0, json.dumps(deep))) == Seen(False, "protected: module.cluster.c")
    assert nothing_is_protected(Answer(0, '{"format_version": "1.0"}')).is_so, "an empty state"


def test_only_what_passes_by_itself_is_tried_again_and_not_for_ever() -> None:
    retry = Retry(2, 1, ("Error 503",))
    assert retry.helps("googleapi: Error 503: busy", 1)
    assert retry.helps("googleapi: Error 503: busy", 2)
    assert not retry.helps("googleapi: Error 503: busy", 3)
    assert not retry.helps("googleapi: Error 403: quota", 1)
