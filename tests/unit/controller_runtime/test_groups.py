"""Controllers are chosen as kube-controller-manager's are, and look only at the kinds that their groups name."""

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
def test_a_list_names_groups(text: str, found: tuple[str, ...]) -> None:
    assert chosen(text) == found


@pytest.mark.parametrize("text", ["queues", "-queues", "*,**"])
def test_what_is_no_group_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not in the list of known controllers: admission, "):
        chosen(text)


def test_what_runs_elsewhere_makes_no_machines_and_runs_no_pods() -> None:
    assert set(ON_KUBERNETES) < set(REMOTE)
    with pytest.raises(ValueError, match="runtime"):
        chosen("runtime", REMOTE)
