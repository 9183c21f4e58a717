"""References to variables in texts."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.kubelet.local.environment import expand, expand_path

VARIABLES: Mapping[str, str] = {"A": "one", "B": "$(A)", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        pytest.param("$(A)-$(A)", "one-one", id="a known name is replaced"),
        pytest.param("$(NO)", "$(NO)", id="an unknown one stays"),
        pytest.param("$(B)", "$(A)", id="what comes in is not looked through again"),
        pytest.param("$$(A)", "$(A)", id="two dollars are one, and no reference"),
        pytest.param("$$$(A)", "$one", id="the third dollar begins a reference"),
        pytest.param("$(A", "$(A", id="what nothing closes stays"),
        pytest.param("$($(A)", "$($(A)", id="the first bracket that closes ends a name"),
        pytest.param("$A $", "$A $", id="a dollar alone is a dollar"),
        pytest.param("$(EMPTY)", "", id="an empty value is a value"),
        pytest.param("$()", "$()", id="no name is unknown"),
        pytest.param("$(A)$$(A", "one$(A", id="two dollars are one behind the last bracket too"),
        pytest.param("$(" * 500_000, "$(" * 500_000, id="much that nothing closes is gone through once"),
    ],
)
def test_references_are_replaced_as_the_api_says(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES.get) == expanded


@given(st.text("$()AB x"))
def test_a_text_is_gone_through_once_whatever_the_variables_hold(text: str) -> None:
    asked: list[str] = []

    def endless(name: str) -> str:
        asked.append(name)
        return "$(A)$(A)"

    expand(text, endless)
    assert len(asked) <= text.count("$(")


@given(st.text("()AB x"), st.dictionaries(st.text("AB"), st.text("$(AB)")))
def test_a_text_without_dollars_stays_as_it_is(text: str, variables: dict[str, str]) -> None:
    assert expand(text, variables.get) == text


def test_a_path_needs_a_value_for_each_name() -> None:
    assert expand_path("$(A)/x", VARIABLES) == ("one/x", [])
    assert expand_path("$(NO)/$(EMPTY)/$(NO)", VARIABLES)[1] == ["EMPTY", "NO"]
