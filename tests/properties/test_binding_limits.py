"""In worlds built around one limit, `why` names this limit and proposes minimal changes that admit the Workload.

If waiting is the only remedy (backoff, a failed ProvisioningRequest, a stock-out), the stated time is checked.
"""

import pytest

from properties.binding_judge import judge
from properties.binding_situations import KINDS, binding_world

#: Each kind twice.
SITUATIONS = [(kind, seed) for seed in range(2) for kind in KINDS]


@pytest.mark.parametrize(("kind", "seed"), SITUATIONS, ids=[f"{kind}-{seed}" for kind, seed in SITUATIONS])
def test_why_names_binding_limit_and_minimal_change(kind: str, seed: int) -> None:
    created = binding_world(kind, seed)
    judgement = judge(created)
    assert judgement.wrong_limit == ""
    assert judgement.broken_changes == []
    assert judgement.proven_count > 0 or not (created.has_change or created.ends_by_itself)
    assert judgement.answer.get("changes") or judgement.answer.get("changesEnd") or "checks" in judgement.answer
