"""Label and node selectors, as Kubernetes evaluates them."""

import pytest

from batchyard.api.meta import Obj, Requirement, parse_selector

LABELS = {"zone": "a", "size": "8", "name": "x-1"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("zone", "In", ("b", "a"), True),
        ("zone", "In", ("b",), False),
        ("other", "In", ("a",), False),
        ("zone", "NotIn", ("b",), True),
        ("zone", "NotIn", ("a", "b"), False),
        ("other", "NotIn", ("a",), True),
        ("zone", "Exists", (), True),
        ("other", "Exists", (), False),
        ("zone", "DoesNotExist", (), False),
        ("other", "DoesNotExist", (), True),
        ("size", "Gt", ("7",), True),
        ("size", "Gt", ("8",), False),
        ("size", "Lt", ("9",), True),
        ("size", "Lt", ("8",), False),
        ("other", "Gt", ("1",), False),
        ("name", "Gt", ("1",), False),
        ("size", "Lt", ("many",), False),
        ("size", "Gt", (), False),
        ("size", "Gt", ("+7",), True),
        ("size", "Gt", ("0_7",), False),
        ("size", "Gt", ("\u0667",), False),
    ],
)
def test_requirement_matches_label(key: str, operator: str, values: tuple[str, ...], *, matches: bool) -> None:
    assert Requirement(key, operator, values).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("obj", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"zone": "a"}}, True),
        ({"matchLabels": {"zone": "a", "size": "9"}}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, True),
        ({"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "size", "operator": "In", "values": []}]}, False),
        ({"matchLabels": None, "matchExpressions": None}, True),
    ],
)
def test_selector_matches_only_if_all_requirements_match(obj: Obj, *, matches: bool) -> None:
    result = parse_selector(obj)
    assert result is not None
    assert result.matches(LABELS) is matches


def test_missing_selector_returns_none() -> None:
    assert parse_selector(None) is None
