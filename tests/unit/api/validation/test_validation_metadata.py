"""Validation of names, labels, annotations, owners and selectors."""

from typing import Any

import pytest

import make
from batchyard.api.validation import rules, validate
from object_edits import GONE, begins, fault_lines, with_edits

QUEUE = make.local_queue()
LONG = "a" * 64


@pytest.mark.parametrize(
    ("rule", "good"),
    [
        pytest.param(rules.dns_label_errors, ["a", "a-1", "1a", "a" * 63], id="labels"),
        pytest.param(rules.dns_subdomain_errors, ["a.b-c.d", "1.2", "a" * 253], id="subdomains"),
        pytest.param(rules.dns1035_label_errors, ["a", "a-1", "a" * 63], id="labels that start with a letter"),
        pytest.param(rules.qualified_name_errors, ["cpu", "A_b.c-9", "example.com/Name"], id="qualified names"),
        pytest.param(rules.label_value_errors, ["", "A_b.c-9", "a" * 63], id="label values"),
        pytest.param(rules.config_key_errors, ["key.name", "KEY_NAME", ".dockercfg"], id="config keys"),
        pytest.param(rules.env_name_errors, ["PATH", "my.var-1", "a b"], id="variables"),
        pytest.param(rules.domain_path_errors, ["acme.io/foo", "a.b/c/d"], id="domain paths"),
    ],
)
def test_valid_name_is_accepted(rule: rules.NameRule, good: list[str]) -> None:
    assert [rule(text) for text in good] == [()] * len(good)


@pytest.mark.parametrize(
    ("rule", "text", "start"),
    [
        pytest.param(rules.dns_label_errors, "A", "a lowercase RFC 1123 label must consist of", id="upper case"),
        pytest.param(
            rules.dns_label_errors, "a.b", "a lowercase RFC 1123 label must consist of", id="a dot in a label"
        ),
        pytest.param(rules.dns_label_errors, LONG, "must be no more than 63 characters", id="a long label"),
        pytest.param(rules.dns_label_errors, "a\n", "a lowercase RFC 1123 label must consist of", id="a line's end"),
        pytest.param(
            rules.dns_subdomain_errors, "a_b", "a lowercase RFC 1123 subdomain must consist of", id="an underscore"
        ),
        pytest.param(
            rules.dns_subdomain_errors, "a" * 254, "must be no more than 253 characters", id="a long subdomain"
        ),
        pytest.param(rules.dns1035_label_errors, "1a", "a DNS-1035 label must consist of", id="a digit first"),
        pytest.param(rules.qualified_name_errors, "/a", "prefix part must be non-empty", id="no prefix"),
        pytest.param(rules.qualified_name_errors, "a/", "name part must be non-empty", id="no name"),
        pytest.param(rules.qualified_name_errors, "a b", "name part must consist of", id="a space"),
        pytest.param(
            rules.qualified_name_errors, LONG, "name part must be no more than 63 characters", id="a long name"
        ),
        pytest.param(
            rules.qualified_name_errors, "A_/b", "prefix part a lowercase RFC 1123 subdomain", id="a bad prefix"
        ),
        pytest.param(rules.qualified_name_errors, "a/b/c", "a qualified name must consist of", id="two slashes"),
        pytest.param(rules.label_value_errors, "-a", "a valid label must be an empty string or", id="a hyphen first"),
        pytest.param(rules.config_key_errors, "a/b", "a valid config key must consist of", id="a slash in a key"),
        pytest.param(rules.config_key_errors, "..", "must not be '..'", id="the folder above"),
        pytest.param(rules.config_key_errors, "..a", "must not start with '..'", id="two dots first"),
        pytest.param(rules.env_name_errors, "A=B", "a valid environment variable name", id="an equals sign"),
        pytest.param(rules.env_name_errors, "ä", "a valid environment variable name", id="not ASCII"),
        pytest.param(rules.domain_path_errors, "foo", "must be a domain-prefixed path", id="no domain"),
        pytest.param(rules.domain_path_errors, "A/b", "a lowercase RFC 1123 subdomain", id="a bad domain"),
        pytest.param(rules.domain_path_errors, "a/b c", "Invalid path", id="a bad path"),
    ],
)
def test_invalid_name_is_rejected_with_kubernetes_message(rule: rules.NameRule, text: str, start: str) -> None:
    (message,) = rule(text)
    assert message.startswith(start)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"metadata.name": GONE, "metadata.generateName": "queue-"}, id="a generated name"),
        pytest.param({"metadata.labels": {"a.io/b": "", "c": "D"}}, id="labels"),
        pytest.param({"metadata.annotations": {"a.io/B": "any text, at all"}}, id="annotations"),
        pytest.param({"metadata.finalizers": ["a.io/b"]}, id="finalizers"),
        pytest.param(
            {"metadata.ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}, id="an owner"
        ),
    ],
)
def test_valid_metadata_is_accepted(edits: dict[str, Any]) -> None:
    assert validate(with_edits(QUEUE, edits)) == []


NO_VALUES = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param({"metadata.name": GONE}, "metadata.name: Required value: name or generateName", id="no name"),
        pytest.param({"metadata.name": "A"}, 'metadata.name: Invalid value: "A": a lowercase', id="a bad name"),
        pytest.param(
            {"metadata.name": GONE, "metadata.generateName": "A-"},
            'metadata.generateName: Invalid value: "A-": a lowercase',
            id="a bad prefix of a name",
        ),
        pytest.param({"metadata.namespace": "a.b"}, 'metadata.namespace: Invalid value: "a.b"', id="a bad namespace"),
        pytest.param({"metadata.labels": {"a b": ""}}, 'metadata.labels: Invalid value: "a b": name part', id="a key"),
        pytest.param({"metadata.labels": {"a": "b c"}}, 'metadata.labels: Invalid value: "b c": a valid', id="a value"),
        pytest.param(
            {"metadata.annotations": {"a b": ""}}, 'metadata.annotations: Invalid value: "a b"', id="an annotation key"
        ),
        pytest.param(
            {"metadata.annotations": {"a": "x" * 262144}},
            "metadata.annotations: Too long: may not be more than 262144 bytes",
            id="annotations that are too long",
        ),
        pytest.param({"metadata.finalizers": ["a b"]}, 'metadata.finalizers[0]: Invalid value: "a b"', id="finalizers"),
        pytest.param(
            {"metadata.finalizers": ["orphan", "foregroundDeletion"]},
            'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: finalizer orphan and',
            id="conflicting deletion finalizers",
        ),
        pytest.param(
            {"metadata.ownerReferences": [{**OWNER, "uid": ""}]},
            'metadata.ownerReferences[0].uid: Invalid value: "": uid must not be empty',
            id="an owner without uid",
        ),
        pytest.param(
            {"metadata.ownerReferences": [{**OWNER, "apiVersion": "batch/"}]},
            'metadata.ownerReferences[0].apiVersion: Invalid value: "batch/": version must not be empty',
            id="an owner of no version",
        ),
        pytest.param(
            {"metadata.ownerReferences": [{**OWNER, "apiVersion": "v1", "kind": "Event"}]},
            "metadata.ownerReferences[0]: Invalid value: /v1, Kind=Event is disallowed from being an owner",
            id="an Event as an owner",
        ),
        pytest.param(
            {"metadata.ownerReferences": [OWNER, OWNER]},
            "metadata.ownerReferences: Invalid value: Only one reference can have Controller set to true",
            id="two controllers",
        ),
    ],
)
def test_invalid_metadata_is_rejected(edits: dict[str, Any], start: str) -> None:
    assert begins(validate(with_edits(QUEUE, edits)), start)


def test_unqualified_finalizer_of_kubernetes_kind_is_rejected() -> None:
    held = {"metadata.finalizers": ["kubernetes", "orphan", "example.com/mine", "mine"]}
    reported = 'Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified'
    assert begins(validate(with_edits(make.namespace(), held)), f"metadata.finalizers[3]: {reported}")
    assert begins(
        validate(with_edits(make.namespace(), {"spec.finalizers": ["mine"]})), f"spec.finalizers[0]: {reported}"
    )
    assert validate(with_edits(QUEUE, held)) == []


def test_invalid_name_fault_suggests_valid_name() -> None:
    (fault,) = validate(with_edits(QUEUE, {"metadata.name": "My_Queue "}))
    assert fault.remedy == 'use a name such as "my-queue"'


@pytest.mark.parametrize(
    ("expression", "lines"),
    [
        pytest.param({"key": "a", "operator": "In", "values": ["b"]}, [], id="In with values"),
        pytest.param({"key": "a", "operator": "Exists"}, [], id="Exists without values"),
        pytest.param(
            {"key": "a", "operator": "NotIn"},
            ["s.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"],
            id="NotIn without values",
        ),
        pytest.param(
            {"key": "a", "operator": "DoesNotExist", "values": ["b"]},
            ["s.matchExpressions[0].values: Forbidden: " + NO_VALUES],
            id="DoesNotExist with values",
        ),
        pytest.param(
            {"key": "a", "operator": "Gt", "values": ["1"]},
            ['s.matchExpressions[0].operator: Invalid value: "Gt": not a valid selector operator'],
            id="an operator of nodes",
        ),
    ],
)
def test_selector_expression_is_validated(expression: dict[str, Any], lines: list[str]) -> None:
    assert fault_lines(list(rules.selector_errors({"matchExpressions": [expression]}, "s"))) == lines


def test_selector_with_invalid_labels_is_rejected() -> None:
    selector = {"matchLabels": {"a b": "c"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}
    starts = ['s.matchLabels: Invalid value: "a b"', 's.matchExpressions[0].values[0]: Invalid value: "b c"']
    assert begins(list(rules.selector_errors(selector, "s")), *starts)
