"""Controllers are selected by group, with the syntax of kube-controller-manager."""

import pytest

from batchyard.controller_groups import (
    GROUPS,
    KUBERNETES_GROUPS,
    REMOTE_GROUPS,
    select_groups,
    watches_nodes_for_topologies,
)


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
    assert select_groups(text) == found


@pytest.mark.parametrize("text", ["queues", "-queues", "*,**"])
def test_unknown_controller_group_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not in the list of known controllers: admission, "):
        select_groups(text)


def test_remote_groups_exclude_runtime() -> None:
    assert set(KUBERNETES_GROUPS) < set(REMOTE_GROUPS)
    with pytest.raises(ValueError, match="runtime"):
        select_groups("runtime", REMOTE_GROUPS)


def test_nodes_are_needed_for_topologies_only_if_no_other_group_reads_them() -> None:
    assert watches_nodes_for_topologies(("admission", "provisioning"))
    assert not watches_nodes_for_topologies(KUBERNETES_GROUPS)
    assert not watches_nodes_for_topologies(("provisioning",))
