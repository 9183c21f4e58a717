"""`why` names the binding limit of worlds that are built around one limit, and changes that admit and are minimal."""

import pytest

from properties.binding_judge import judge
from properties.binding_situations import KINDS, binding_world

#: Forty situations: each kind once, and some a second time.
SITUATIONS = [(kind, number // len(KINDS)) for number, kind in enumerate([*KINDS, *KINDS][:40])]


@pytest.mark.parametrize(("kind", "seed"), SITUATIONS, ids=[f"{kind}-{seed}" for kind, seed in SITUATIONS])
def test_why_names_binding_limit_and_minimal_change(kind: str, seed: int) -> None:
    created = binding_world(kind, seed)
    judgement = judge(created)
    assert judgement.wrong_limit == ""
    assert judgement.broken_changes == []
    assert judgement.proven_count > 0 or not created.has_change
    assert judgement.answer.get("changes") or judgement.answer.get("changesEnd") or "checks" in judgement.answer
