"""The admission checks that a Workload with quota waits for, and changes after which it would not wait for them."""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.explain.proposals import FIX, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.interfaces.client import Reader
from batchyard.scheduling.active_status import PROVISIONING_CONTROLLER_NAME
from batchyard.scheduling.workload.lifecycle import AdmissionCheck


def controller_name_of(check: str, reader: Reader) -> str:
    """Return the `controllerName` of the AdmissionCheck with this name; '' if it is unset or the check is missing."""
    obj = reader.get(Key(scheme.ADMISSION_CHECK, "", check))
    return "" if obj is None else str(obj["spec"].get("controllerName", ""))


def check_removal_patch(queue: Obj, names: Sequence[str]) -> Patch:
    """Return the patch that removes the AdmissionChecks with these names from a ClusterQueue."""
    strategy = queue["spec"].get("admissionChecksStrategy") or {}
    other_checks = [each for each in strategy.get("admissionChecks") or () if each["name"] not in names]
    fields = {"spec": {"admissionChecksStrategy": {"admissionChecks": other_checks}}}
    return merge_patch("ClusterQueue", queue["metadata"]["name"], fields)


def propose_check_removal(queue: str, waiting_checks: Sequence[AdmissionCheck], reader: Reader) -> Iterator[Proposal]:
    """Yield the removal of `waiting_checks`, for which a Workload with quota waits, from its ClusterQueue.

    The Workload is then admitted, because all its other checks are Ready. Nothing is yielded if the ClusterQueue does
    not exist, or if the provisioning controller sets one of the checks: the pods would wait for machines instead.
    """
    names = [check["name"] for check in waiting_checks]
    obj = reader.get(Key(scheme.CLUSTER_QUEUE, "", queue))
    if obj is None or any(controller_name_of(name, reader) == PROVISIONING_CONTROLLER_NAME for name in names):
        return
    text = f"ClusterQueue {queue}: remove AdmissionCheck {', '.join(names)}, for all its Workloads"
    yield Proposal(FIX, text, (check_removal_patch(obj, names),))


def awaited_event(check: AdmissionCheck, reader: Reader) -> str:
    """Return a text that names the controller that must set an admission check to Ready."""
    controller = controller_name_of(check["name"], reader) or "a controller"
    return f"it is admitted without a change when {controller} sets AdmissionCheck {check['name']} to Ready"
