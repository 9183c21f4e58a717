"""Parsing of the output of terraform, gcloud and kubectl; the texts are original."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.provision.steps.google import parse_protection
from batchyard.provision.steps.model import CommandOutput, ProbeResult, ResultParser, Retry
from batchyard.provision.steps.probe_parsers import (
    all_active,
    all_have_condition,
    fails,
    field_equals,
    is_admitted_and_unfinished,
    lists_all,
    none_match,
    parse_kubectl_diff,
    parse_terraform_plan,
    prints_anything,
    prints_nothing,
    succeeds,
    version_at_least,
)

NOT_SERVED = CommandOutput(1, "", 'error: the server doesn\'t have a resource type "clusterqueues"\n')
REFUSED = CommandOutput(
    1, "", "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n"
)
PLAN = "Terraform will perform ...\n\nPlan: 87 to add, 0 to change, 0 to destroy.\n\nSaved the plan to: x\n"
LOCKED = "╷\n│ Error: Error acquiring the state lock\n│ \n│ Error message: writing ...\n╵\n"
DIFF = "diff -u -N /tmp/LIVE-1/a /tmp/MERGED-1/a\n--- x\n+++ y\ndiff -u -N /tmp/LIVE-1/b /tmp/MERGED-1/b\n"


def objects(*rows: dict[str, Any]) -> CommandOutput:
    return CommandOutput(0, json.dumps({"kind": "List", "items": list(rows)}))


def queue(name: str, active: str, message: str = "", namespace: str = "") -> dict[str, Any]:
    where = {"namespace": namespace} if namespace else {}
    return {
        "metadata": {"name": name, **where},
        "status": {"conditions": [{"type": "Active", "status": active, "reason": "R", "message": message}]},
    }


@pytest.mark.parametrize(
    ("reading", "answer", "seen"),
    [
        pytest.param(succeeds(), CommandOutput(0, "ok"), ProbeResult(True), id="success"),
        pytest.param(succeeds(), REFUSED, ProbeResult(False, REFUSED.stderr.strip()), id="no server"),
        pytest.param(fails("it is"), CommandOutput(0, ""), ProbeResult(False, "it is"), id="unexpected success"),
        pytest.param(
            prints_anything("nobody"), CommandOutput(0, "\n"), ProbeResult(False, "nobody"), id="nothing printed"
        ),
        pytest.param(
            prints_anything("nobody"),
            CommandOutput(0, "me@x\nyou@x\n"),
            ProbeResult(True, "me@x"),
            id="something printed",
        ),
        pytest.param(
            prints_nothing("left"), CommandOutput(0, "job.batch/a\n"), ProbeResult(False, "left: 1"), id="one left"
        ),
        pytest.param(prints_nothing("left"), NOT_SERVED, ProbeResult(True), id="kind not served"),
        pytest.param(
            prints_nothing("left"), REFUSED, ProbeResult(False, REFUSED.stderr.strip()), id="left, and no server"
        ),
        pytest.param(
            lists_all(["a", "b"]), CommandOutput(0, "c\na\n"), ProbeResult(False, "not enabled: b"), id="one missing"
        ),
        pytest.param(lists_all(["a"]), CommandOutput(0, "a\n"), ProbeResult(True, "1 enabled"), id="all listed"),
        pytest.param(
            field_equals("on", True, "off"),
            CommandOutput(0, '{"on": false}'),
            ProbeResult(False, "off"),
            id="field is false",
        ),
        pytest.param(
            field_equals("on", True, "off"), CommandOutput(0, '{"on": true}'), ProbeResult(True), id="field is true"
        ),
        pytest.param(
            version_at_least(["v"], (1, 9)),
            CommandOutput(0, '{"v": "1.11.4"}'),
            ProbeResult(True, "1.11.4"),
            id="newer",
        ),
        pytest.param(
            version_at_least(["v"], (1, 28)),
            CommandOutput(0, '{"v": "v1.32.4-dispatcher"}'),
            ProbeResult(True, "1.32.4"),
            id="v",
        ),
        pytest.param(
            version_at_least(["v"], (1, 9)),
            CommandOutput(0, '{"v": "1.5.7"}'),
            ProbeResult(False, "version 1.5.7 is too old: install at least 1.9"),
            id="old",
        ),
        pytest.param(
            parse_terraform_plan, CommandOutput(0, "No changes."), ProbeResult(True, "no changes"), id="nothing planned"
        ),
        pytest.param(
            parse_terraform_plan,
            CommandOutput(2, PLAN),
            ProbeResult(False, "87 to add, 0 to change, 0 to destroy"),
            id="a plan",
        ),
        pytest.param(
            parse_terraform_plan,
            CommandOutput(1, "", LOCKED),
            ProbeResult(False, "Error: Error acquiring the state lock"),
            id="locked",
        ),
        pytest.param(parse_kubectl_diff, CommandOutput(0, ""), ProbeResult(True, "as rendered"), id="no diff"),
        pytest.param(
            parse_kubectl_diff, CommandOutput(1, DIFF), ProbeResult(False, "2 objects to write"), id="two differ"
        ),
        pytest.param(
            parse_kubectl_diff, REFUSED, ProbeResult(False, REFUSED.stderr.strip()), id="no diff without a server"
        ),
    ],
)
def test_command_output_is_parsed(reading: ResultParser, answer: CommandOutput, seen: ProbeResult) -> None:
    assert reading(answer) == seen


def test_each_expected_object_must_have_condition() -> None:
    answer = objects(
        queue("a", "True"), queue("b", "False", "Can't admit: FlavorNotFound"), queue("of-others", "False")
    )
    assert all_have_condition("Active", ["a"])(answer) == ProbeResult(True, "1 Active")
    assert all_have_condition("Active", ["a", "b"])(answer) == ProbeResult(False, "b: Can't admit: FlavorNotFound")
    assert all_have_condition("Active", ["c"])(answer) == ProbeResult(False, "c: not found")


def test_stopped_queues_are_named_and_need_not_be_active() -> None:
    def is_stopped(obj: Mapping[str, Any]) -> bool:
        return bool(obj["spec"].get("stopPolicy", "None") != "None")

    held = {"spec": {"stopPolicy": "Hold"}, **queue("held", "False", "Can't admit new workloads: is stopped.")}
    below_held = {"spec": {"clusterQueue": "held"}, **queue("lq", "False", "no", namespace="x")}
    below_open = {"spec": {"clusterQueue": "open"}, **queue("lq", "False", "no", namespace="y")}
    answer = objects(held, {"spec": {}, **queue("open", "True")}, below_held, below_open)
    stopped = "stopped by their stopPolicy, not waited for"
    assert all_active(["held", "open"], is_stopped)(answer) == ProbeResult(True, f"1 Active; {stopped}: held")
    assert all_active(["open"], is_stopped)(answer) == ProbeResult(True, "1 Active")
    local_queues = all_active(["x/lq", "y/lq"], is_stopped)(answer)
    assert local_queues == ProbeResult(False, f"y/lq: no; {stopped}: x/lq")
    assert all_active(["held"], is_stopped)(REFUSED) == ProbeResult(False, REFUSED.stderr.strip())


def test_objects_are_distinguished_by_namespace() -> None:
    answer = objects(queue("lq", "True", namespace="x"), queue("lq", "False", "no", namespace="y"))
    assert all_have_condition("Active", ["x/lq"])(answer).is_satisfied
    assert all_have_condition("Active", ["y/lq"])(answer) == ProbeResult(False, "y/lq: no")


def test_single_object_is_read_as_list() -> None:
    assert all_have_condition("Active", ["a"])(CommandOutput(0, json.dumps(queue("a", "True")))).is_satisfied


@pytest.mark.parametrize(
    ("conditions", "is_so"),
    [([("Admitted", "True")], True), ([("Admitted", "True"), ("Finished", "True")], False), ([], False)],
)
def test_workload_has_quota_until_finished(conditions: list[tuple[str, str]], is_so: bool) -> None:
    rows = [{"type": kind, "status": status} for kind, status in conditions]
    assert is_admitted_and_unfinished({"status": {"conditions": rows}}) is is_so


def test_running_workloads_are_named() -> None:
    running = {
        "metadata": {"name": "w", "namespace": "n"},
        "status": {"conditions": [{"type": "Admitted", "status": "True"}]},
    }
    assert none_match(is_admitted_and_unfinished, "running")(objects(running)) == ProbeResult(False, "running: 1 (n/w)")
    assert none_match(is_admitted_and_unfinished, "running")(CommandOutput(0, "")) == ProbeResult(True)
    assert none_match(is_admitted_and_unfinished, "running")(NOT_SERVED) == ProbeResult(True)
    assert not none_match(is_admitted_and_unfinished, "running")(REFUSED).is_satisfied


def test_protected_cluster_is_found_in_nested_modules() -> None:
    cluster = {"address": "module.cluster.c", "values": {"deletion_protection": True}}
    deep = {"values": {"root_module": {"child_modules": [{"child_modules": [{"resources": [cluster]}]}]}}}
    assert parse_protection(CommandOutput(0, json.dumps(deep))) == ProbeResult(False, "protected: module.cluster.c")
    assert parse_protection(CommandOutput(0, '{"format_version": "1.0"}')).is_satisfied, "an empty state"


def test_only_transient_errors_are_retried_up_to_limit() -> None:
    retry = Retry(2, 1, ("Error 503",))
    assert retry.should_retry("googleapi: Error 503: busy", 1)
    assert retry.should_retry("googleapi: Error 503: busy", 2)
    assert not retry.should_retry("googleapi: Error 503: busy", 3)
    assert not retry.should_retry("googleapi: Error 403: quota", 1)
