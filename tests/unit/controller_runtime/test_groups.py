"""Controllers are selected by group, with the syntax of kube-controller-manager."""

import pytest

from batchyard.controller_groups import GROUPS, ON_KUBERNETES, REMOTE, chosen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("*", GROUPS),
        ("admission", ("admission",)),
        (" jobset , admission ", ("admission", "jobset")),
        ("*,-admission", tuple(group for group in GROUPS if group != "admission")),
        ("-admission,*,admission", tuple(group for group in GROUPS if group != "admission")),
        ("", ()),
        ("-cloud", ()),
    ],
)
def test_chosen_parses_list_of_groups(text: str, found: tuple[str, ...]) -> None:
    assert chosen(text) == found


@pytest.mark.parametrize("text", ["queues", "-queues", "*,**"])
def test_unknown_controller_group_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not in the list of known controllers: admission, "):
        chosen(text)


def test_remote_groups_exclude_runtime() -> None:
    assert set(ON_KUBERNETES) < set(REMOTE)
    with pytest.raises(ValueError, match="runtime"):
        chosen("runtime", REMOTE)
