"""Rules in the Common Expression Language."""

from typing import Any

import pytest

from batchyard.apiserver.crd.rules import find_compilation_problems
from unit.apiserver.crd.rockets import (
    DEFINITIONS,
    ROCKETS,
    DefinitionApi,
    definition,
    rocket,
    schema_of,
    space,
    version_of,
)

WHOLE = {"type": "integer"}
TEXT = {"type": "string"}
MERGE = {"content-type": "application/merge-patch+json"}


def schema_with_rules(*rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The schema of objects with validation rules for their spec."""
    schema = schema_of(**fields)
    schema["properties"]["spec"]["x-kubernetes-validations"] = list(rules)
    return schema


def test_broken_rule_reports_its_message() -> None:
    rules = [
        {"rule": "self.a <= self.b", "message": "a is too much"},
        {"rule": "self.a > 5", "messageExpression": "'a is ' + string(self.a)"},
        {"rule": "self.b > 5"},
        {"rule": "self.b > 6", "message": "more of b", "reason": "FieldValueRequired", "fieldPath": ".b"},
    ]
    assert space(schema_with_rules(*rules, a=WHOLE, b=WHOLE)).faults(rocket(a=2, b=1)) == [
        'spec: Invalid value: "object": a is too much',
        'spec: Invalid value: "object": a is 2',
        'spec: Invalid value: "object": failed rule: self.b > 5',
        "spec.b: Required value: more of b",
    ]


def test_rule_that_cannot_be_evaluated_fails() -> None:
    reported = space(schema_with_rules({"rule": "self.a > 1", "message": "much"}, a=WHOLE)).faults(rocket())
    assert reported[0].startswith('spec: Invalid value: "object": ')
    assert reported[0].endswith("evaluating rule: much")


def test_rule_over_call_cost_limit_fails() -> None:
    items = {"type": "array", "items": WHOLE}
    rule = {"rule": "self.a.all(x, self.a.all(y, self.a.all(z, x + y + z > 0)))", "message": "much"}
    reported = space(schema_with_rules(rule, a=items)).faults(rocket(a=[1] * 100))
    assert reported[0].startswith('spec: Invalid value: "object": call cost exceeds limit: ')


@pytest.mark.slow
def test_rules_share_one_cost_budget() -> None:
    item: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "array", "items": WHOLE}}}
    item["x-kubernetes-validations"] = [{"rule": "self.b.all(x, self.b.exists_one(y, x == y))"}]
    api, crew = space(schema_of(a={"type": "array", "items": item})), {"b": list(range(99))}
    api.post(ROCKETS, rocket(a=[crew] * 100))
    reported = "validation failed due to running out of cost budget, no further validation rules will be run"
    assert api.faults(rocket(a=[crew] * 1900)) == [f'spec.a[990]: Invalid value: "object": {reported}']


def test_string_concatenation_counts_toward_cost_budget() -> None:
    names = {"type": "array", "items": TEXT}
    api = space(schema_with_rules({"rule": "self.a.map(x, self.b + x).size() > 0"}, a=names, b=TEXT))
    api.post(ROCKETS, rocket(a=["x"] * 1000, b="y" * 1000))
    (reported,) = api.faults(rocket(a=["x"] * 5000, b="y" * 500_000))
    assert "running out of cost budget" in reported


def test_rule_on_large_lists_and_strings_takes_linear_time() -> None:
    """Comparing all pairs of items, or backtracking in Python's regular expressions, would never end."""
    rules = [{"rule": "sets.equivalent(self.a, self.b) && !self.c.find('^(x+)+$').startsWith('x')"}]
    many = {"type": "array", "items": WHOLE}
    api, whole = space(schema_with_rules(*rules, a=many, b=many, c=TEXT)), list(range(80_000))
    api.post(ROCKETS, rocket(a=whole, b=whole[::-1], c="x" * 1000 + "y"))


def test_transition_rule_is_checked_on_update_only() -> None:
    api = space(schema_with_rules({"rule": "self.a >= oldSelf.a", "message": "never less"}, a=WHOLE))
    api.post(ROCKETS, rocket(a=2))
    assert api.ask("PATCH", f"{ROCKETS}/ariane", {"spec": {"a": 3}}, headers=MERGE).code == 200
    refused = api.ask("PATCH", f"{ROCKETS}/ariane", {"spec": {"a": 1}}, headers=MERGE)
    assert refused.body["details"]["causes"][0]["message"] == 'Invalid value: "object": never less'


def test_rule_with_optional_old_self_is_checked_on_create() -> None:
    rule = {"rule": "oldSelf.hasValue() || self.a == 1", "optionalOldSelf": True, "message": "begin with 1"}
    api = space(schema_with_rules(rule, a=WHOLE))
    assert api.faults(rocket(a=2)) == ['spec: Invalid value: "object": begin with 1']
    api.post(ROCKETS, rocket(a=1))
    assert api.ask("PATCH", f"{ROCKETS}/ariane", {"spec": {"a": 2}}, headers=MERGE).code == 200


def test_optional_old_self_is_available_in_message() -> None:
    rule = {"rule": "oldSelf.orValue(self).a == self.a", "messageExpression": "string(oldSelf.value().a) + ' is fixed'"}
    api = space(schema_with_rules({**rule, "optionalOldSelf": True}, a=WHOLE))
    api.post(ROCKETS, rocket(a=1))
    rejected = api.ask("PATCH", f"{ROCKETS}/ariane", {"spec": {"a": 2}}, headers=MERGE)
    assert rejected.body["details"]["causes"][0]["message"] == 'Invalid value: "object": 1 is fixed'


def test_rule_sees_only_self_and_old_self() -> None:
    for text in ("before == self", "wasThere", "true) || (true"):
        for is_optional in (False, True):
            rule = {"rule": text, "optionalOldSelf": is_optional}
            assert find_compilation_problems(rule)[0].startswith("compilation failed: "), rule


def test_transition_rule_compares_list_items_by_key() -> None:
    item: dict[str, Any] = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "size": WHOLE}}
    item["x-kubernetes-validations"] = [{"rule": "self.size >= oldSelf.size", "message": "no smaller"}]
    crew = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    api = space(schema_of(crew=crew))
    api.post(ROCKETS, rocket(crew=[{"name": "a", "size": 5}, {"name": "b", "size": 1}]))
    changed = {"spec": {"crew": [{"name": "c", "size": 0}, {"name": "b", "size": 2}, {"name": "a", "size": 4}]}}
    reported = api.ask("PATCH", f"{ROCKETS}/ariane", changed, headers=MERGE).body["details"]["causes"]
    assert [cause["field"] for cause in reported] == ["spec.crew[2]"]


HOLDING = [
    "self.list.isSorted() && self.list.sum() == 6 && self.list.max() == 3 && self.list.indexOf(2) == 1",
    "!sets.contains([1], [true]) && sets.equivalent([1, [2], {'a': 1}], [[2.0], {'a': 1}, 1, 1])",
    "[true, 1].indexOf(1) == 1 && [1, true].lastIndexOf(1) == 0",
    "'b aab'.findAll('a*') == ['', '', 'aa', ''] && 'a1b2'.findAll('[0-9]', 1) == ['1']",
    "sets.contains(self.list, [1]) && !sets.intersects(self.list, [9]) && sets.equivalent(self.list, [3, 2, 1])",
    "quantity(self.size).isGreaterThan(quantity('1Mi')) && quantity(self.size) == quantity('1024Mi')",
    "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0 && !isQuantity('many')",
    "isURL('https://a.b:80/c') && url('https://a.b:80/c').getHostname() == 'a.b' && !isURL('a')",
    "self.list.reverse() == [3, 2, 1] && [1, 2].reverse() == [2, 1] && 'ab'.reverse() == 'ba'",
    "self.list.slice(0, 2) == [1, 2] && [[1], [2, 3]].flatten() == self.list && lists.range(2) == [0, 1]",
    "[3, 1, 3].distinct() == [3, 1] && [3, 1, 2].sort() == self.list",
    "semver('1.2.3').isGreaterThan(semver('1.2.3-rc.1')) && semver('v1.2', true).minor() == 2 && !isSemver('1.2')",
    "isIP('::1') && ip('10.1.1.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1')",
    "'abc123'.find('[0-9]+') == '123' && 'a1b2'.findAll('[0-9]') == ['1', '2']",
    "self.?missing.orValue(1) == 1 && self.list.map(x, x * 2).exists(x, x == 6)",
    "self.share / 2.0 == 1.5 && self.__if__ == 'x' && self.a__dash__b == 'y'",
    "'a,b'.split(',').size() == 2 && '%d of %s'.format([1, 'x']) == '1 of x' && math.greatest(1, 2) == 2",
]


NETWORK_RULES = [
    "ip('10.0.0.1').isGlobalUnicast() && ip('fd00::1').isGlobalUnicast() && !ip('::').isGlobalUnicast()",
    "!ip('255.255.255.255').isGlobalUnicast() && !ip('ff00::1').isGlobalUnicast() && !ip('::1').isGlobalUnicast()",
    "ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast()",
    "!ip('169.254.1.1').isGlobalUnicast() && !ip('192.168.0.1').isLinkLocalUnicast()",
    "ip('224.0.0.1').isLinkLocalMulticast() && !ip('224.0.1.1').isLinkLocalMulticast()",
    "ip('ff02::1').isLinkLocalMulticast() && !ip('fd00::1').isLinkLocalMulticast()",
    "ip.isCanonical('127.0.0.1') && !ip.isCanonical('2001:DB8::ABCD') && !ip.isCanonical('2001:db8::0:0:0:abcd')",
    "cidr('192.168.0.1/24').ip() == ip('192.168.0.1') && cidr('::1/128').ip().family() == 6",
    "cidr('10.1.0.1/16').masked() == cidr('10.1.0.0/16') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
    "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isCIDR('::ffff:1.2.3.4/120')",
    "!isCIDR('10.0.0.0/255.0.0.0') && !isCIDR('10.0.0.0/08') && !isCIDR('10.0.0.0') && isCIDR('10.0.0.0/8')",
]


@pytest.mark.parametrize("rule", [*HOLDING, *NETWORK_RULES])
def test_rule_uses_kubernetes_extension_functions(rule: str) -> None:
    fields = {"list": {"type": "array", "items": WHOLE}, "size": TEXT, "share": {"type": "number"}, "if": TEXT}
    api = space(schema_with_rules({"rule": rule}, **fields, **{"a-b": TEXT}))
    api.post(ROCKETS, rocket(list=[1, 2, 3], size="1Gi", share=3, **{"if": "x", "a-b": "y"}))


@pytest.mark.parametrize("rule", ["self.a >", "nonsense(self)", "'text'", " "])
def test_definition_rejects_invalid_rule(rule: str) -> None:
    reported = DefinitionApi().faults(definition(version_of(schema_with_rules({"rule": rule}, a=WHOLE))), DEFINITIONS)
    place = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
    assert [fault.partition(": ")[0] for fault in reported] == [place]


def test_rule_with_unsupported_function_returns_warning_and_is_not_checked() -> None:
    api = DefinitionApi()
    written = definition(version_of(schema_with_rules({"rule": "self.a.transformList(i, v, v) == [1]"}, a=TEXT)))
    (warning,) = api.ask("POST", DEFINITIONS, written).warnings
    assert warning.endswith("the rule is not checked: unsupported functions: transformList")
    api.reconcile_definition()
    api.post(ROCKETS, rocket(a="0.1.0"))


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("self.a.sortBy(x, x) == self.a", "sortBy"),
        ("self.a.all(i, v, i < v) && self.a.exists(i, v, i < v)", "all, exists"),
        ("self.a.existsOne(i, v, i < v)", "existsOne"),
        ("[optional.of(1)].unwrapOpt() == [1]", "unwrapOpt"),
        ("optional.unwrap([optional.of(1)]) == [1]", "unwrap"),
        ("!format.dns1123Label().validate(self.b).hasValue()", "format"),
    ],
)
def test_rule_with_unsupported_function_of_kubernetes_is_no_error(rule: str, names: str) -> None:
    assert find_compilation_problems({"rule": rule}) == ("", names)
