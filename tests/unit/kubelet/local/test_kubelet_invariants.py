"""Invariants of the local kubelet under random events of its pods, its machine and its platform.

The machine itself asserts that no container runs twice at a time, and that only ended runs are removed.
"""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, with_status
from batchyard.base.instant import SECOND
from unit.kubelet.local.fake_machine import ContainerScript, LocalStage, pod, sidecar
from unit.kubelet.local.local_make import container

NAMES = ("first", "side", "main", "other")
SCRIPTS = st.builds(
    ContainerScript,
    seconds=st.sampled_from([None, 0, 1, 5, 700]),
    code=st.sampled_from([0, 1]),
    stopping=st.sampled_from([0, 3, 1000]),
    stopped_code=st.sampled_from([0, 143]),
    started=st.sampled_from([0, 2]),
)
WHICH = st.sampled_from(["sandbox", *(f"{name}/{attempt}" for name in NAMES for attempt in (0, 1))])
EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, 4, 11, 400])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("lose"), WHICH),
    st.tuples(st.just("probe"), WHICH.filter(lambda name: name != "sandbox")),
    st.tuples(st.just("delete"), st.sampled_from([None, 5, 0])),
    st.tuples(st.just("fault"), st.none()),
    st.tuples(st.just("declare"), st.none()),
)


class CheckedStage(LocalStage):
    """A stage that applies random events."""

    def apply_event(self, what: str, detail: Any) -> None:
        """Applies an event."""
        match what:
            case "pass":
                self.pass_time((self.kernel.now() - make.NOW) / SECOND + detail)
            case "restart":
                self.restart()
            case "lose":
                self.machine.lose(detail)
            case "probe":
                self.machine.set_status(detail, failed={"probe": "liveness", "message": "no"})
            case "delete":
                if self.existing_pod is not None:
                    self.delete_pod(detail)
            case "fault":
                self.machine.faults.append("no network")
            case "declare":
                if self.existing_pod is not None and self.existing_pod["status"]["phase"] in {"Pending", "Running"}:
                    self.put(with_status(self.existing_pod, {**self.existing_pod["status"], "phase": "Failed"}))
        self.settle()

    @property
    def existing_pod(self) -> Mapping[str, Any] | None:
        """The pod, if it still exists."""
        return self.client.get(Key(scheme.POD, "team", "pod"))


def restarts(status: Mapping[str, Any]) -> Mapping[str, int]:
    """The restart count of each container."""
    both = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
    return {each["name"]: each["restartCount"] for each in both}


@given(
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.lists(SCRIPTS, min_size=4, max_size=4),
    st.lists(EVENTS, max_size=10),
)
def test_kubelet_invariants_hold_for_random_events(
    policy: str, scripts: list[ContainerScript], events: list[tuple[str, Any]]
) -> None:
    by_name = dict(zip(NAMES, scripts, strict=True))
    stage = CheckedStage(
        pod(container("main"), container("other"), first=[sidecar(), container("first")], restartPolicy=policy),
        **by_name,
    )
    for what, detail in events:
        before = stage.existing_pod
        stage.apply_event(what, detail)
        after = stage.existing_pod
        if before is None or after is None:
            assert after is None
            continue
        if before["status"]["phase"] in {"Succeeded", "Failed"}:
            assert after["status"]["phase"] == before["status"]["phase"]
        counts = restarts(after["status"])
        assert all(counts[name] >= count for name, count in restarts(before["status"]).items())
    if stage.existing_pod is not None:
        stage.delete_pod()
    stage.apply_event("pass", 100)
    assert stage.is_gone()
