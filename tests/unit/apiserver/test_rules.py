"""What a rule of a role allows, and what rules cover each other."""

import pytest

from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.auth.authorization import Attributes
from batchyard.apiserver.auth.rbac import Rule, uncovered

ANNA = User("anna", ())


def on(verb: str, resource: str, group: str = "", name: str = "") -> Attributes:
    resource, _, part = resource.partition("/")
    return Attributes(ANNA, verb, group, resource, part, "team", name)


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        (Rule(("get",), ("",), ("pods",)), on("get", "pods"), True),
        (Rule(("get",), ("",), ("pods",)), on("list", "pods"), False),
        (Rule(("*",), ("",), ("pods",)), on("list", "pods"), True),
        (Rule(("get",), ("batch",), ("pods",)), on("get", "pods"), False),
        (Rule(("get",), ("*",), ("jobs",)), on("get", "jobs", "batch"), True),
        (Rule(("get",), ("",), ("pods",)), on("get", "pods/log"), False),
        (Rule(("get",), ("",), ("pods/log",)), on("get", "pods/log"), True),
        (Rule(("get",), ("",), ("pods/log",)), on("get", "pods"), False),
        (Rule(("get",), ("",), ("*",)), on("get", "pods/log"), True),
        (Rule(("get",), ("*",), ("*/scale",)), on("get", "deployments/scale", "apps"), True),
        (Rule(("get",), ("*",), ("*/scale",)), on("get", "deployments/status", "apps"), False),
        (Rule(("get",), ("",), ("pods/*",)), on("get", "pods/log"), False),  # as Kubernetes has it
        (Rule(("get",), ("",), ("pods",), ("a",)), on("get", "pods", name="a"), True),
        (Rule(("get",), ("",), ("pods",), ("a",)), on("get", "pods", name="b"), False),
        (Rule(("list",), ("",), ("pods",), ("a",)), on("list", "pods"), False),
        (Rule(("*",), ("*",), ("*",)), Attributes(ANNA, "get", path="/metrics"), False),
        (Rule(("get",), urls=("/metrics",)), Attributes(ANNA, "get", path="/metrics"), True),
        (Rule(("get",), urls=("/metrics",)), Attributes(ANNA, "get", path="/metrics/a"), False),
        (Rule(("get",), urls=("/metrics/*",)), Attributes(ANNA, "get", path="/metrics/a"), True),
        (Rule(("get",), urls=("*",)), Attributes(ANNA, "get", path="/debug"), True),
        (Rule(("get",), urls=("*",)), on("get", "pods"), False),
    ],
)
def test_a_rule_allows_what_it_says(rule: Rule, asked: Attributes, allowed: bool) -> None:
    assert rule.allows(asked) is allowed


READS = Rule(("get", "list"), ("",), ("pods", "secrets"))


@pytest.mark.parametrize(
    ("wanted", "held", "missing"),
    [
        (READS, [READS], []),
        (READS, [Rule(("*",), ("*",), ("*",))], []),
        (READS, [Rule(("get", "list"), ("",), ("pods",)), Rule(("get", "list"), ("",), ("secrets",))], []),
        (
            READS,
            [Rule(("get", "list"), ("",), ("pods",))],
            ['{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}'],
        ),
        (Rule(("get",), ("",), ("pods",), ("a",)), [Rule(("get",), ("",), ("pods",))], []),
        (
            Rule(("get",), ("",), ("pods",)),
            [Rule(("get",), ("",), ("pods",), ("a",))],
            ['{APIGroups:[""], Resources:["pods"], Verbs:["get"]}'],
        ),
        (Rule(("get",), ("",), ("pods/log",)), [Rule(("get",), ("",), ("*/log",))], []),
        (Rule(("get",), urls=("/a/b",)), [Rule(("get",), urls=("/a/*",))], []),
        (Rule(("get",), urls=("/b",)), [Rule(("get",), urls=("/a/*",))], ['{NonResourceURLs:["/b"], Verbs:["get"]}']),
        (Rule(("*",), ("",), ("pods",)), [READS], ['{APIGroups:[""], Resources:["pods"], Verbs:["*"]}']),
    ],
)
def test_what_is_wanted_and_not_held_is_told(wanted: Rule, held: list[Rule], missing: list[str]) -> None:
    assert [str(rule) for rule in uncovered([wanted], held)] == missing
