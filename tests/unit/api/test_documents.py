"""YAML and JSON documents: splitting, parsing as Kubernetes does, limits and reported faults."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.yaml_documents import ALIASED_VALUES_MAX, NESTING_MAX, Document, read_documents


def values(text: str) -> list[Any]:
    """Return the values of all documents, which must be valid."""
    documents = list(read_documents(text))
    assert [str(fault) for document in documents for fault in document.faults] == []
    return [document.value for document in documents]


def only(text: str) -> Document:
    """Return the only document of a text."""
    (document,) = read_documents(text)
    return document


def fault_texts(text: str) -> list[str]:
    """Return the faults of the only document of a text."""
    return [str(fault) for fault in only(text).faults]


@pytest.mark.parametrize(
    "text",
    [
        *("a: 1\n---\nb: 2", "---\na: 1\n---\nb: 2\n", "a: 1\n--- # next\nb: 2\n---\n", "--- {a: 1}\n--- {b: 2}"),
        *("\ufeffa: 1\r\n---\r\nb: 2\r\n", "---\n---\n\n# note\n---\na: 1\n---\n---\nb: 2\n---\n  \n"),
        *('{"a": 1}\n---\n{"b": 2}', '{"a":1}\n{"b":2}\n', '\n{"a":1}\n\n{"b":2}'),
        *("%YAML 1.1\n---\na: 1\n---\nb: 2", "a: 1\n...\n---\nb: 2"),
    ],
)
def test_documents_are_split_and_empty_documents_skipped(text: str) -> None:
    assert values(text) == [{"a": 1}, {"b": 2}]
    assert [document.number for document in read_documents(text)] == [1, 2]


@pytest.mark.parametrize("text", ["", "\n", "---\n---", "# only a note", "null", "--- ~"])
def test_empty_text_has_no_documents(text: str) -> None:
    assert values(text) == []


def test_separator_inside_line_or_block_scalar_is_ignored() -> None:
    assert values("a: |\n  ---\n  x\nb: a---b\nc: ---d") == [{"a": "---\nx\n", "b": "a---b", "c": "---d"}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("10Gi", "10Gi"),
        ("$REGION", "$REGION"),
        ("1e3", 1000),
        ("1.0", 1),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-1", 0.1),
        ("1_000", 1000),
        ("0x1F", 31),
        ("010", 8),
        ("0o17", 15),
        ("-0b11", -3),
        ("+7", 7),
        ("08", 8),
        ("1.2.3", "1.2.3"),
        ("-x", "-x"),
        ("yes", True),
        ("Off", False),
        ("y", "y"),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!int '1'", 1),
        ("!!float 1", 1),
        ("!!binary aGk=", "hi"),
        ("! 1", "1"),
    ],
)
def test_scalars_are_parsed_as_kubernetes_does(text: str, value: object) -> None:
    (document,) = values(f"a: {text}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (".inf", 'a: .inf is not a number in JSON (line 1); write a finite number, or ".inf" in quotes'),
        ("1e400", "a: the number 1e400 is too large (line 1); put the value in quotes if it is text"),
        ("9" * 500, "a: a number of 500 digits is too large (line 1); put the value in quotes if it is text"),
        ("!!int x", "a: 'x' is not a valid int (line 1); remove the tag, or change the value"),
        ("!mine x", "a: the tag !mine is not supported (line 1); remove the tag"),
        ("!mine {}", "a: the tag !mine is not supported (line 1); remove the tag"),
        (
            "!!binary /w==",
            "a: the !!binary value is not base64 of UTF-8 text (line 1); correct the value, or remove the tag",
        ),
        ("*b", "a: the anchor &b is not defined before *b (line 1); define the anchor, or quote the text"),
        ("&b [*b]", "a[0]: the anchor &b is not defined before *b (line 1); define the anchor, or quote the text"),
    ],
    ids=lambda text: text[:12],
)
def test_scalar_without_json_equivalent_is_reported(text: str, fault: str) -> None:
    assert fault_texts(f"a: {text}") == [fault]


def test_duplicate_field_is_reported_with_line() -> None:
    text = "spec:\n  groups:\n  - name: x\n    size: 1\n    name: y\n"
    assert fault_texts(text) == ['spec.groups[0]: the field "name" is set twice (line 5); remove one of the two']


def test_duplicate_field_in_json_is_reported() -> None:
    assert fault_texts('{"a": {"b": 1,\n "b": 2}}') == ['a: the field "b" is set twice (line 2); remove one of the two']
    assert values('{"a": "\\u0061", "b": 1E2}') == [{"a": "a", "b": 100.0}]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1: a", 'line 1: the field name 1 is not a string; put the value in quotes: "1"'),
        ("yes: a", 'line 1: the field name true is not a string; put the value in quotes: "true"'),
        ("? [a]\n: b", "line 1: a list cannot be the name of a field; quote the name if it contains brackets"),
        ("? {a: b}\n: c", "line 1: an object cannot be the name of a field; quote the name if it contains braces"),
        ("{{a: 1}: b}: c", "line 1: an object cannot be the name of a field; quote the name if it contains braces"),
    ],
)
def test_field_name_that_is_no_string_is_rejected(text: str, fault: str) -> None:
    assert fault_texts(text)[0] == fault


def test_all_faults_are_reported_and_other_fields_are_read() -> None:
    document = only("a: 1\na: 2\nb: .nan\nc: 3")
    assert [(fault.path, fault.line) for fault in document.faults] == [("", 2), ("b", 3)]
    assert document.value["c"] == 3


def test_anchors_and_merge_keys_are_resolved() -> None:
    text = "base: &b {x: 1, y: 2}\nall: [*b, *b]\nown: {<<: *b, y: 3}\nboth: {<<: [{z: 9}, *b], z: 0}"
    assert values(text) == [
        {
            "base": {"x": 1, "y": 2},
            "all": [{"x": 1, "y": 2}, {"x": 1, "y": 2}],
            "own": {"x": 1, "y": 3},
            "both": {"x": 1, "y": 2, "z": 0},
        }
    ]
    assert fault_texts("a: {<<: 1}") == [
        "a.<<: << must merge an object or a list of objects (line 1); write `<<: *name`, where &name marks an object"
    ]


def test_excessive_alias_expansion_is_rejected() -> None:
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    (fault,) = fault_texts("\n".join(lines))
    assert fault == f"line 6: aliases expand to more than {ALIASED_VALUES_MAX} values; use fewer aliases"


@pytest.mark.parametrize("opening", ["[", "- ", '{"a":', "{a: "])
def test_deep_nesting_is_rejected(opening: str) -> None:
    (fault,) = fault_texts(opening * 100_000)
    assert fault == f"line 1: values are nested more than {NESTING_MAX} levels deep; reduce the nesting"


def test_deeply_nested_complete_json_is_rejected() -> None:
    (fault,) = fault_texts('{"a":' * (NESTING_MAX + 1) + "1" + "}" * (NESTING_MAX + 1))
    assert f"nested more than {NESTING_MAX} levels deep" in fault
    assert values('{"a": "' + "{" * 200 + '"}') == [{"a": "{" * 200}]


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("a: 1\nb: c: d", 2, "check the indentation, and put texts that contain ': ' in quotes"),
        ("a:\n\tb: 1", 2, "put texts that start with one of @ ` % in quotes, and indent with spaces, not tabs"),
        ("a: 'x\nb: 1", 2, "add the missing closing quote"),
        ("a: [1, 2\nb: 3", 2, "add the missing closing bracket, or a comma between the values"),
        ("- a\nb: c", 2, "indent all items of the list equally, and their fields below them"),
        ("a: b\nc\nd: e", 3, "write `name: value`, with a space after the colon"),
        ('{"a": 1', 1, "add the missing closing bracket, or a comma between the values"),
        ("a: \0", 1, "remove the control characters, and save the file as UTF-8"),
        ("a: \ud800", 0, "save the file as UTF-8"),
        ("a: b\n...\nc: d", 3, "put a line with --- between documents"),
    ],
)
def test_syntax_error_is_reported_with_line_and_remedy(text: str, line: int, remedy: str) -> None:
    (fault,) = only(text).faults
    assert (fault.path, fault.line, fault.remedy) == ("", line, remedy)


@pytest.mark.parametrize(
    ("text", "line", "action"),
    [
        ("{{- if .Values.on }}\na: 1\n{{- end }}", 1, "{{- if .Values.on }}"),
        ("a: 1\nb: {{ .Values.b }}", 2, "{{ .Values.b }}"),
        ("a: 1\n\n{% for x in y %}\nb: x", 3, "{% for x in y %}"),
    ],
)
def test_template_is_reported_once_with_its_first_action(text: str, line: int, action: str) -> None:
    (fault,) = only(text).faults
    assert fault.problem == f"the document is a template, not YAML: it contains {action}"
    assert fault.remedy.startswith("render the template first, for example with `helm template CHART")
    assert fault.line == line


def test_quoted_template_action_is_text() -> None:
    assert values("a: '{{ .Values.b }}'") == [{"a": "{{ .Values.b }}"}]


def test_fault_line_counts_from_start_of_whole_text() -> None:
    documents = list(read_documents("a: 1\n---\n# note\nb: 2\n---\nc: d: e\n---\nf: 3\n"))
    assert [document.value for document in documents] == [{"a": 1}, {"b": 2}, None, {"f": 3}]
    assert documents[2].faults[0].line == 6
    assert only("%YAML 1.1\n---\na: b: c").faults[0].line == 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, min_size=1, max_size=4))
def test_json_document_round_trips(value: dict[str, Any]) -> None:
    assert values(json.dumps(value, indent=1)) == [value]


@settings(deadline=None)
@given(st.text())
def test_any_text_yields_value_or_fault(text: str) -> None:
    for document in read_documents(text):
        assert document.value is not None or document.faults
