"""References to variables in texts."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.kubelet.local.environment import expand_path, expand_references

VARIABLES: Mapping[str, str] = {"A": "one", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("$(A)-$(A)", "one-one", id="a known name is replaced"),
        pytest.param("$(NO)", "$(NO)", id="an unknown name stays"),
        pytest.param("$(B)", "$(A)", id="an expanded value is not expanded again"),
        pytest.param("$$(A)", "$(A)", id="two dollars escape a reference"),
        pytest.param("$$$(A)", "$one", id="three dollars are an escape and a reference"),
        pytest.param("$(A", "$(A", id="an unclosed reference stays"),
        pytest.param("$($(A)", "$($(A)", id="the first closing bracket ends a name"),
        pytest.param("$A $", "$A $", id="a dollar alone is a dollar"),
        pytest.param("$(EMPTY)", "", id="an empty value is a value"),
        pytest.param("$()", "$()", id="an empty name is unknown"),
        pytest.param("$(A)$$(A", "one$(A", id="two dollars escape an unclosed reference"),
        pytest.param("$(" * 500_000, "$(" * 500_000, id="many unclosed references are scanned once"),
    ],
)
def test_references_are_expanded(text: str, expanded: str) -> None:
    assert expand_references(text, VARIABLES.get) == expanded


@given(st.text("$()AB x"))
def test_text_is_expanded_in_one_pass(text: str) -> None:
    request: list[str] = []

    def endless(name: str) -> str:
        request.append(name)
        return "$(A)$(A)"

    expand_references(text, endless)
    assert len(request) <= text.count("$(")


@given(st.text("()AB x"), st.dictionaries(st.text("AB"), st.text("$(AB)")))
def test_text_without_dollar_is_unchanged(text: str, variables: dict[str, str]) -> None:
    assert expand_references(text, variables.get) == text


def test_path_expansion_requires_value_for_each_name() -> None:
    assert expand_path("$(A)/x", VARIABLES) == ("one/x", [])
    assert expand_path("$(NO)/$(EMPTY)/$(NO)", VARIABLES)[1] == ["EMPTY", "NO"]
