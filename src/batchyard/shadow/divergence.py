"""Divergence detection: compares Kueue's scheduling decisions with those of batchyard's scheduler (the model)."""

from collections.abc import Mapping
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition
from batchyard.api.times import format_second
from batchyard.api.views.workload import WorkloadView
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.workload import lifecycle
from batchyard.shadow import findings
from batchyard.shadow.observed import (
    KueueDecision,
    ObservedAdmission,
    ObservedPreemption,
    Signature,
    predicted_admission,
    signature_of,
)
from batchyard.shadow.replay import DecisionReplay
from batchyard.shadow.state import SchedulerModel


class ObservedDecision(NamedTuple):
    """A decision of Kueue, and the time at which shadow mode observed it."""

    decision: KueueDecision
    at: Instant


def describe_unpredicted_decision(
    kueue_decision: ObservedDecision, model: SchedulerModel, names_by_uid: Mapping[str, str], now: Instant
) -> findings.Divergence:
    """Return the divergence report for a decision of Kueue that batchyard would not make.

    `names_by_uid` are the names of Workloads (`namespace/name`).
    """
    observed_decision = kueue_decision.decision
    if isinstance(observed_decision, ObservedAdmission):
        return _unpredicted_admission(observed_decision, kueue_decision.at, model, names_by_uid, now)
    preemptor = names_by_uid.get(observed_decision.preemptor_uid, "")
    prediction = model.decide_for_only_head(preemptor) if preemptor else None
    documents = findings.observed_document(observed_decision, names_by_uid), findings.predicted_document(prediction)
    kueue_text = f"preempted for {preemptor or 'an unknown Workload'} ({observed_decision.reason})"
    victim = model.index.snapshot.holder(observed_decision.workload)
    queue = "" if victim is None else victim.queue.name
    if isinstance(prediction, Preempt):
        divergence_type = findings.DivergenceType.VICTIMS
        model_text = _describe_other_victims(observed_decision, prediction, model)
        predicted_reasons = [target.reason for target in prediction.targets]
    else:
        divergence_type, predicted_reasons = findings.DivergenceType.PREEMPTED, []
        model_text = _explain_no_preemption(prediction, preemptor, model)
    hint = findings.fair_sharing_hint_for(observed_decision.reason, predicted_reasons, is_fair=model.has_fair_sharing)
    hints = findings.diagnostic_commands(divergence_type, observed_decision.workload, queue, kueue_decision.at, hint)
    return findings.Divergence(
        divergence_type,
        now,
        observed_decision.workload,
        f"{kueue_text}; {model_text}",
        *documents,
        since=kueue_decision.at,
        hints=hints,
    )


def _unpredicted_admission(
    admission: ObservedAdmission, at: Instant, model: SchedulerModel, names_by_uid: Mapping[str, str], now: Instant
) -> findings.Divergence:
    prediction = model.decide_for_only_head(admission.workload)
    kueue_text = f"admitted in {admission.queue} with {findings.describe_flavors(admission.pod_sets)}"
    divergence_type, model_text, model_document = (
        findings.DivergenceType.ADMITTED,
        findings.describe_prediction(prediction),
        findings.predicted_document(prediction),
    )
    if isinstance(prediction, Admit) and predicted_admission(prediction) != admission:
        divergence_type = findings.DivergenceType.FLAVORS
        if prediction.queue.name != admission.queue:
            model_text = f"it waits in {prediction.queue.name}, and {model_text} there"
    elif isinstance(prediction, Admit):
        order_text = _describe_queue_order(admission, model)
        model_text = f"the model admits other Workloads first: {order_text}"
        model_document = {"decision": "wait", "reason": "NotItsTurn", "message": order_text}
    elif prediction is None:
        model_text = _explain_no_decision(admission.workload, model)
    hints = findings.diagnostic_commands(divergence_type, admission.workload, admission.queue, at)
    documents = findings.observed_document(admission, names_by_uid), model_document
    return findings.Divergence(
        divergence_type, now, admission.workload, f"{kueue_text}; {model_text}", *documents, since=at, hints=hints
    )


def _describe_queue_order(admission: ObservedAdmission, model: SchedulerModel) -> str:
    position = model.index.count_ahead_of(admission.queue, admission.workload)
    first_pending_views = model.index.first_pending(admission.queue, 1)
    view = model.index.workload_cache.view(admission.workload)
    if not position or not first_pending_views or view is None:
        return "Workloads of other queues in its cohort are ahead of it"
    first_view = first_pending_views[0]
    order_fields = f"{_describe_order_fields(first_view)}; {admission.workload}: {_describe_order_fields(view)}"
    ahead_text = f"{count_with_noun(position, 'Workload')} {select_verb(position, 'is', 'are')} ahead of it"
    return f"{ahead_text} in {admission.queue}, the first is {first_view.key} ({order_fields})"


def _describe_order_fields(view: WorkloadView) -> str:
    return f"priority {view.priority}, queued {format_second(view.queued)}"


def _explain_no_decision(workload: str, model: SchedulerModel) -> str:
    quota_holder, pending_view = model.index.snapshot.holder(workload), model.index.workload_cache.view(workload)
    if quota_holder is not None:
        return f"{workload} already holds quota in {quota_holder.queue.name}"
    if pending_view is None:
        return f"{workload} is finished or deleted"
    if not pending_view.active:
        return f"{workload} is not active"
    queue = model.queue_of(pending_view)
    return f"{workload} names a LocalQueue that does not exist" if queue is None else f"{workload} waits in {queue}"


def _explain_no_preemption(prediction: Decision | None, preemptor: str, model: SchedulerModel) -> str:
    if not preemptor:
        return "without the preemptor, the model cannot check this preemption"
    return _explain_no_decision(preemptor, model) if prediction is None else findings.describe_prediction(prediction)


def _describe_other_victims(preemption: ObservedPreemption, prediction: Preempt, model: SchedulerModel) -> str:
    targets_by_key = {each.workload.key: each for each in prediction.targets}
    target = targets_by_key.pop(preemption.workload, None)
    other_victims = ", ".join(_describe_victim(targets_by_key[key]) for key in sorted(targets_by_key))
    if target is not None and target.reason != preemption.reason:
        return f"we preempt it as {target.reason}" + (f", and with it {other_victims}" if other_victims else "")
    if target is not None:
        return f"we preempt with it {other_victims}"
    victim = model.index.snapshot.holder(preemption.workload)
    observed_victim = (
        "a Workload without quota" if victim is None else _describe_victim(PreemptionTarget(victim, preemption.reason))
    )
    return f"we preempt {other_victims}, not {observed_victim}"


def _describe_victim(target: PreemptionTarget) -> str:
    victim = target.workload
    reserved_at = format_second(victim.reserved_at)
    return f"{victim.key} ({victim.queue.name}, priority {victim.priority}, quota since {reserved_at}: {target.reason})"


def describe_missing_decision(
    decision: Decision, model: SchedulerModel, made_at: Instant, now: Instant
) -> findings.Divergence:
    """Return the divergence report for a decision that batchyard made at `made_at` and Kueue has not made."""
    view = decision.head.workload
    obj = model.get(Key(scheme.WORKLOAD, view.namespace, view.name))
    quota_condition = None if obj is None else find_condition(obj, lifecycle.QUOTA_RESERVED)
    kueue_message = str((quota_condition or {}).get("message") or "")
    divergence_types = findings.DivergenceType
    divergence_type = divergence_types.NOT_ADMITTED if isinstance(decision, Admit) else divergence_types.NOT_PREEMPTED
    queue = decision.head.queue
    waited_seconds = round((now - made_at) / SECOND, 1)
    message = f"left waiting in {queue} for {waited_seconds:g} s; {findings.describe_prediction(decision)}"
    if kueue_message:
        message += f"; Kueue reports: {kueue_message}"
    kueue_document = {"decision": "wait", "reason": (quota_condition or {}).get("reason", ""), "message": kueue_message}
    hints = findings.diagnostic_commands(divergence_type, view.key, queue, made_at)
    return findings.Divergence(
        divergence_type,
        now,
        view.key,
        message,
        kueue_document,
        findings.predicted_document(decision),
        since=made_at,
        hints=hints,
    )


class DivergenceDetector(DecisionReplay):
    """Replays Kueue's decisions of one cohort tree, and reports where they differ from batchyard's decisions."""

    @property
    def is_overdue(self) -> bool:
        """Whether Kueue or batchyard's scheduler made a decision that the other did not make in time."""
        return self._overdue_kueue_decision() is not None or self._overdue_model_decision() is not None

    def overdue_since(self) -> Instant:
        """Return the deadline that passed for Kueue's first overdue decision, or else for batchyard's.

        The result is the current time if no decision is overdue.
        """
        kueue_decision, model_decision = self._overdue_kueue_decision(), self._overdue_model_decision()
        if kueue_decision is not None:
            return self._change_deadline(kueue_decision)
        if model_decision is None:
            return self._now
        return (
            self._wait_start(self._open_decisions[model_decision[0]].first_made_at[signature_of(model_decision[1])])
            + self._settings.patience
        )

    def overdue_signature(self) -> Signature | None:
        """Return the identity of batchyard's first decision that Kueue did not make in time; None if there is none."""
        overdue_decision = self._overdue_model_decision()
        return None if overdue_decision is None else signature_of(overdue_decision[1])

    def awaits_decision(self, signature: Signature) -> bool:
        """Return whether batchyard's scheduler made the decision with this identity and Kueue has not made it yet."""
        return any(signature in open_decisions.first_made_at for open_decisions in self._open_decisions.values())

    def report_divergence(self) -> None:
        """Add the first overdue divergence, if any, to `findings`, and continue the replay from what Kueue decided."""
        kueue_decision, model_decision = self._overdue_kueue_decision(), self._overdue_model_decision()
        missing_model_decision = None if kueue_decision is None else self._find_overdue_cause(kueue_decision)
        if missing_model_decision is not None:
            self._report_missing_decision(*missing_model_decision)
        elif kueue_decision is not None:
            self._report_unpredicted_decision(kueue_decision)
        elif model_decision is not None:
            self._report_missing_decision(*model_decision)

    def _find_overdue_cause(self, change_number: int) -> tuple[str, Decision] | None:
        """Return a cohort tree and batchyard's earlier decision in it that may explain a later decision of Kueue.

        `change_number` is the backlog number of Kueue's decision, which batchyard did not predict.
        """
        pending = self.backlog.items[change_number]
        tree, kueue_choice = self._tree_of(pending), pending.change.decision
        record = self._open_decisions.get(tree)
        for decision in record.decisions if record is not None else ():
            first_made_at = record.first_made_at.get(signature_of(decision)) if record is not None else None
            view = decision.head.workload
            is_same = kueue_choice is not None and (kueue_choice.workload == view.key or kueue_choice[-1] == view.uid)
            made_at = None if first_made_at is None else self._settings.wait_start(first_made_at, pending.arrived_at)
            if made_at is not None and made_at < pending.arrived_at - self._settings.watch_skew_max and not is_same:
                return None if self._changes_for(decision) is not None else (tree, decision)
        return None

    def _overdue_kueue_decision(self) -> int | None:
        for number in self.backlog.decision_numbers:
            if self.backlog.is_first_of_object(number) and self._now >= self._change_deadline(number):
                return number
        return None

    def _overdue_model_decision(self) -> tuple[str, Decision] | None:
        for tree, open_decisions in self._open_decisions.items():
            for decision in open_decisions.decisions:
                made_at = open_decisions.first_made_at.get(signature_of(decision))
                is_late = made_at is not None and self._now - self._wait_start(made_at) >= self._settings.patience
                if is_late and self._changes_for(decision) is None:
                    return tree, decision
        return None

    def _report_unpredicted_decision(self, change_number: int) -> None:
        pending_change = self.backlog.items[change_number]
        decision, tree = pending_change.change.decision, self._tree_of(pending_change)
        assert decision is not None, "every number in backlog.decision_numbers has a decision"
        kueue_decision = ObservedDecision(decision, pending_change.arrived_at)
        finding = describe_unpredicted_decision(kueue_decision, self.model, self._names_by_uid, self._now)
        numbers = [change_number]
        if isinstance(decision, ObservedPreemption):  # report all victims of one preemptor as one divergence
            numbers = [each for each in self.backlog.decision_numbers if self._has_same_preemptor(each, decision)]
        for each in numbers:
            self._apply_change(each)
        self._add_finding(finding)
        self._open_decisions.pop(tree, None)

    def _has_same_preemptor(self, change_number: int, preemption: ObservedPreemption) -> bool:
        decision = self.backlog.items[change_number].change.decision
        return (
            isinstance(decision, ObservedPreemption)
            and decision.preemptor_uid == preemption.preemptor_uid
            and self.backlog.is_first_of_object(change_number)
        )

    def _report_missing_decision(self, tree: str, decision: Decision) -> None:
        key = decision.head.workload.key
        self.reported_decisions[key] = signature_of(decision)
        first_made_at = self._open_decisions.pop(tree).first_made_at.get(self.reported_decisions[key], self._now)
        self._add_finding(describe_missing_decision(decision, self.model, first_made_at, self._now))

    def _add_finding(self, finding: findings.Divergence) -> None:
        name, counts = finding.divergence_type.value, self.counts.divergences
        counts[name] = counts.get(name, 0) + 1
        self.findings.append(finding)
