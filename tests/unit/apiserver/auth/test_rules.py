"""What an RBAC rule allows, and which rules cover others."""

import pytest

from batchyard.apiserver.auth.authorization import RbacRule, RequestAttributes, missing_rules
from batchyard.apiserver.request import UserInfo

ANNA = UserInfo("anna", ())


def request_for(verb: str, resource: str, group: str = "", name: str = "") -> RequestAttributes:
    resource, _, part = resource.partition("/")
    return RequestAttributes(ANNA, verb, group, resource, part, "team", name)


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        (RbacRule(("get",), ("",), ("pods",)), request_for("get", "pods"), True),
        (RbacRule(("get",), ("",), ("pods",)), request_for("list", "pods"), False),
        (RbacRule(("*",), ("",), ("pods",)), request_for("list", "pods"), True),
        (RbacRule(("get",), ("batch",), ("pods",)), request_for("get", "pods"), False),
        (RbacRule(("get",), ("*",), ("jobs",)), request_for("get", "jobs", "batch"), True),
        (RbacRule(("get",), ("",), ("pods",)), request_for("get", "pods/log"), False),
        (RbacRule(("get",), ("",), ("pods/log",)), request_for("get", "pods/log"), True),
        (RbacRule(("get",), ("",), ("pods/log",)), request_for("get", "pods"), False),
        (RbacRule(("get",), ("",), ("*",)), request_for("get", "pods/log"), True),
        (RbacRule(("get",), ("*",), ("*/scale",)), request_for("get", "deployments/scale", "apps"), True),
        (RbacRule(("get",), ("*",), ("*/scale",)), request_for("get", "deployments/status", "apps"), False),
        (RbacRule(("get",), ("",), ("pods/*",)), request_for("get", "pods/log"), False),  # as Kubernetes has it
        (RbacRule(("get",), ("",), ("pods",), ("a",)), request_for("get", "pods", name="a"), True),
        (RbacRule(("get",), ("",), ("pods",), ("a",)), request_for("get", "pods", name="b"), False),
        (RbacRule(("list",), ("",), ("pods",), ("a",)), request_for("list", "pods"), False),
        (RbacRule(("*",), ("*",), ("*",)), RequestAttributes(ANNA, "get", path="/metrics"), False),
        (RbacRule(("get",), urls=("/metrics",)), RequestAttributes(ANNA, "get", path="/metrics"), True),
        (RbacRule(("get",), urls=("/metrics",)), RequestAttributes(ANNA, "get", path="/metrics/a"), False),
        (RbacRule(("get",), urls=("/metrics/*",)), RequestAttributes(ANNA, "get", path="/metrics/a"), True),
        (RbacRule(("get",), urls=("*",)), RequestAttributes(ANNA, "get", path="/debug"), True),
        (RbacRule(("get",), urls=("*",)), request_for("get", "pods"), False),
    ],
)
def test_rbac_rule_allows_its_verbs_groups_resources_names_and_urls(
    rule: RbacRule, asked: RequestAttributes, allowed: bool
) -> None:
    assert rule.allows(asked) is allowed


READS = RbacRule(("get", "list"), ("",), ("pods", "secrets"))


@pytest.mark.parametrize(
    ("wanted", "held", "missing"),
    [
        (READS, [READS], []),
        (READS, [RbacRule(("*",), ("*",), ("*",))], []),
        (READS, [RbacRule(("get", "list"), ("",), ("pods",)), RbacRule(("get", "list"), ("",), ("secrets",))], []),
        (
            READS,
            [RbacRule(("get", "list"), ("",), ("pods",))],
            ['{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}'],
        ),
        (RbacRule(("get",), ("",), ("pods",), ("a",)), [RbacRule(("get",), ("",), ("pods",))], []),
        (
            RbacRule(("get",), ("",), ("pods",)),
            [RbacRule(("get",), ("",), ("pods",), ("a",))],
            ['{APIGroups:[""], Resources:["pods"], Verbs:["get"]}'],
        ),
        (RbacRule(("get",), ("",), ("pods/log",)), [RbacRule(("get",), ("",), ("*/log",))], []),
        (RbacRule(("get",), urls=("/a/b",)), [RbacRule(("get",), urls=("/a/*",))], []),
        (
            RbacRule(("get",), urls=("/b",)),
            [RbacRule(("get",), urls=("/a/*",))],
            ['{NonResourceURLs:["/b"], Verbs:["get"]}'],
        ),
        (RbacRule(("*",), ("",), ("pods",)), [READS], ['{APIGroups:[""], Resources:["pods"], Verbs:["*"]}']),
    ],
)
def test_uncovered_returns_rules_that_held_rules_do_not_cover(
    wanted: RbacRule, held: list[RbacRule], missing: list[str]
) -> None:
    assert [str(rule) for rule in missing_rules([wanted], held)] == missing
