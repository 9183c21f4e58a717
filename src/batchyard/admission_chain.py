"""The platform's admission chain: defaults, mutating plugins, validating plugins and quota checks.

The order is that of Kubernetes. docs/concepts/admission.md lists the plugins. Source: pkg/kubeapiserver/options.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Final

from batchyard.admission_plugins import built_in
from batchyard.admission_plugins.job_annotations import check_ready_timeouts, gate_dependent_job, gate_elastic_job
from batchyard.admission_plugins.limit_ranges import check_limits, with_limit_defaults
from batchyard.admission_plugins.service_accounts import VOLUME_PREFIX, with_service_account
from batchyard.api import scheme
from batchyard.api.defaults import pod_defaults
from batchyard.api.errors import Forbidden, InvalidObject
from batchyard.api.meta import Obj, annotation, group_kind, is_elastic
from batchyard.api.validation.queues import on_flavors_errors
from batchyard.api.well_known import AFTER, DEFAULT_SERVICE_CIDR
from batchyard.autoscaler.provisioning_request_pods import with_queued_request_nodes
from batchyard.base.primitives import uid_for
from batchyard.client.local import (
    DEFAULT_HOOK,
    AdmissionHooks,
    PrepareHook,
    UpdateCheck,
    UpdateCompleter,
    generated_name,
)
from batchyard.cloud.cluster_objects import catalog_errors
from batchyard.controller_groups import JOB_CONTROLLERS
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.jobs.job.spec import with_selector
from batchyard.jobs.jobset.exclusive_placement import mutate_pod, validate_pod, with_priority_label
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.jobs.pod.admission import queue_pod
from batchyard.kubelet.simulated.durations import with_work_finalizer
from batchyard.quotas.resource_quotas import QuotaAdmission
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, KueueSettings
from batchyard.services.addresses import ServiceAddresses
from batchyard.volumes import admission as volume_admission

#: The plugins for new objects of namespaced kinds that only the API has.
_API_MUTATIONS: Final[Mapping[str, PrepareHook]] = {scheme.PERSISTENT_VOLUME_CLAIM: volume_admission.prepare_claim}
_NAMESPACED_KINDS: Final = tuple(info.constant for info in scheme.KINDS if info.namespaced)


class AdmissionChain:
    """The platform's admission plugins and ResourceQuota usage; `observe` must receive all object changes in order."""

    def __init__(
        self,
        *,
        with_nodes: bool,
        with_api: bool,
        kueue: KueueSettings = SIMULATION_SETTINGS,
        service_cidr: str = DEFAULT_SERVICE_CIDR,
        upstream: Collection[str] = (),
        job_controllers: Collection[str] = (),
    ) -> None:
        """Create the chain; raise ValueError if `service_cidr`, the range of cluster IPs, is invalid.

        The chain omits the rules of the projects `upstream`, such as `kueue`, whose own webhooks check the objects. It
        has the rules of the projects `job_controllers`, such as `kubeflow`, whose jobs the platform runs.
        """
        self._training_kinds = frozenset(JOB_CONTROLLERS["kubeflow"] if "kubeflow" in job_controllers else ())
        self._has_queues, self._has_job_sets = "kueue" not in upstream, "jobset" not in upstream
        self._rules = kueue.policy.rules
        self._with_nodes = with_nodes
        self._with_api = with_api
        self._managed_jobs = kueue.managed_jobs
        self._gates_topology = with_nodes and kueue.is_topology_aware
        self._ready_timeout_max = kueue.timeout_on_workload_max
        self._quotas = QuotaAdmission()
        self._addresses = ServiceAddresses(service_cidr)

    def observe(self, event: WatchEvent) -> None:
        """Update the tracked ResourceQuota usage, and the enabled kinds of jobs, with the change of an object."""
        self._quotas.observe(event)
        if event.key.kind == scheme.JOB_KIND and self._has_queues:
            self._managed_jobs.observe_job_kind(event)

    def hooks(self) -> AdmissionHooks:
        """Return the hooks that the client calls before it writes: for new objects, updates, and deleted Namespaces."""
        completers: dict[str, UpdateCompleter] = dict.fromkeys(scheme.SERVING_KINDS, self._complete_service)
        if self._with_api:
            completers[scheme.SERVICE] = self._addresses.complete_update
        guards = {scheme.NAMESPACE: built_in.check_deletion}
        return AdmissionHooks(self._prepare_hooks(), guards, self._check_hooks(), completers)

    def _prepare_hooks(self) -> Mapping[str, PrepareHook]:
        mutate_by_kind: Mapping[str, PrepareHook] = {
            scheme.POD: self._prepare_pod,
            scheme.JOB: self._prepare_job,
            scheme.JOB_SET: self._prepare_job_set,
            **(_API_MUTATIONS if self._with_api else {}),
            **dict.fromkeys(scheme.SERVING_KINDS, self._prepare_service),
            **({scheme.SERVICE: self._addresses.complete_new} if self._with_api else {}),
        }
        prepare_by_kind: dict[str, PrepareHook] = {
            kind: partial(self._prepare_namespaced, mutate_by_kind.get(kind)) for kind in _NAMESPACED_KINDS
        }
        prepare_by_kind |= {DEFAULT_HOOK: self._prepare_custom_object, scheme.JOB_KIND: self._prepare_job_kind}
        if self._with_api:
            prepare_by_kind[scheme.PRIORITY_CLASS] = _prepare_priority_class
            prepare_by_kind |= {scheme.NAMESPACE: _prepare_namespace, scheme.CLUSTER: _prepare_cluster}
        return prepare_by_kind

    def _check_hooks(self) -> Mapping[str, UpdateCheck]:
        checks: dict[str, UpdateCheck] = dict.fromkeys(INTEGRATIONS, self._check_queue)
        checks |= {DEFAULT_HOOK: self._check_custom_object, scheme.JOB_KIND: _check_job_kind}
        checks[scheme.SERVICE] = self._quotas.check_update
        checks |= dict.fromkeys(scheme.SERVING_KINDS, self._check_service)
        checks[scheme.POD] = self._check_pod
        checks[scheme.PERSISTENT_VOLUME_CLAIM] = self._check_claim
        if self._rules.rejects_unknown_on_flavors and self._has_queues:
            checks[scheme.CLUSTER_QUEUE] = _check_on_flavors
        if self._with_api:
            checks |= {scheme.PRIORITY_CLASS: _check_priority_class, scheme.NAMESPACE: _check_namespace}
            checks[scheme.CLUSTER] = _check_cluster
        return checks

    def _check_pod(self, new: Obj, old: Obj, reader: Reader) -> None:
        built_in.check_pod_change(new, old, reader.get)
        if new["metadata"].get("labels") != old["metadata"].get("labels"):
            built_in.check_queue_removal(new, old, reader.get, self._managed_jobs)
        self._quotas.check_update(new, old, reader)

    def _check_claim(self, new: Obj, old: Obj, reader: Reader) -> None:
        if self._with_api:
            volume_admission.check_claim_size(new, old)
        self._quotas.check_update(new, old, reader)

    def _check_queue(self, new: Obj, old: Obj, reader: Reader) -> None:
        built_in.check_queue_removal(new, old, reader.get, self._managed_jobs)
        if self._ready_timeout_max is not None and self._managed_jobs.has_kind_of(new):
            check_ready_timeouts(new, old, self._ready_timeout_max)

    def _prepare_namespaced(self, mutate: PrepareHook | None, obj: Obj, reader: Reader) -> Obj:
        built_in.check_namespace(obj, reader.get)
        mutated_object = obj if mutate is None else mutate(obj, reader)
        self._quotas.check_new_object(mutated_object, reader)
        return mutated_object

    def _prepare_custom_object(self, obj: Obj, reader: Reader) -> Obj:
        self._check_training_job(obj, None)
        if self._managed_jobs.has_kind_of(obj):
            is_service = group_kind(obj) in scheme.SERVING_KINDS
            prepare = self._prepare_service if is_service else self._prepare_described_job
            return self._prepare_namespaced(prepare, obj, reader)
        return self._prepare_namespaced(None, obj, reader) if obj["metadata"].get("namespace") else obj

    def _prepare_described_job(self, job: Obj, reader: Reader) -> Obj:
        controller = _described_jobs()
        queued_job: Obj = controller.queue_described_job(job, reader.get, self._managed_jobs)
        queued_job = self._with_dependency_gate(queued_job, reader)
        if errors := list(controller.described_job_errors(queued_job, None, self._managed_jobs, reader.get)):
            raise InvalidObject(errors)
        if self._ready_timeout_max is not None:
            check_ready_timeouts(queued_job, None, self._ready_timeout_max)
        return queued_job

    def _check_training_job(self, new: Obj, old: Obj | None) -> None:
        if group_kind(new) not in self._training_kinds or (old is not None and new.get("spec") == old.get("spec")):
            return
        from batchyard.jobs.stand_ins.training_jobs import training_job_errors  # noqa: PLC0415 - rarely needed

        if errors := training_job_errors(new, old):
            raise InvalidObject(errors)

    def _check_custom_object(self, new: Obj, old: Obj, reader: Reader) -> None:
        self._check_training_job(new, old)
        if scheme.is_built_in(group_kind(new)) or not self._managed_jobs.has_kind_of(new):
            return
        controller = _described_jobs()
        if errors := list(controller.described_job_errors(new, old, self._managed_jobs, reader.get)):
            raise InvalidObject(errors)
        self._check_queue(new, old, reader)

    def _prepare_service(self, service: Obj, reader: Reader) -> Obj:
        if not self._managed_jobs.has_kind_of(service):
            return service
        admission = _serving_admission()
        queued_service: Obj = admission.queue_service(service, reader.get, self._managed_jobs)
        admission.check_service(queued_service, None, reader.get, self._managed_jobs)
        return queued_service

    def _complete_service(self, new: Obj, _old: Obj, reader: Reader) -> Obj:
        if not self._managed_jobs.has_kind_of(new):
            return new
        queued_service: Obj = _serving_admission().queue_service(new, reader.get, self._managed_jobs)
        return queued_service

    def _check_service(self, new: Obj, old: Obj, reader: Reader) -> None:
        if self._managed_jobs.has_kind_of(new):
            _serving_admission().check_service(new, old, reader.get, self._managed_jobs)

    def _prepare_job_kind(self, job_kind: Obj, reader: Reader) -> Obj:
        if len(reader.list(scheme.JOB_KIND)) >= built_in.JOB_KINDS_MAX:
            raise Forbidden(f"there are {built_in.JOB_KINDS_MAX} JobKinds, and more are not allowed; delete one first")
        _check_job_kind(job_kind, {}, reader)
        return job_kind

    def _prepare_pod(self, pod: Obj, reader: Reader) -> Obj:
        limit_ranges: Sequence[Obj] = reader.list(scheme.LIMIT_RANGE, pod["metadata"].get("namespace", ""))
        new_pod = with_limit_defaults(pod_defaults(pod), limit_ranges) if limit_ranges else pod
        if self._with_api:
            volume_name = generated_name(VOLUME_PREFIX, uid_for(0, VOLUME_PREFIX, pod["metadata"]["uid"]))
            new_pod = with_service_account(new_pod, reader.get, volume_name)
        priority_classes = reader.list(scheme.PRIORITY_CLASS)
        new_pod = with_work_finalizer(
            built_in.admit_pod(new_pod, reader.get, built_in.find_global_default(priority_classes)), reader
        )
        if self._has_job_sets:
            new_pod = mutate_pod(new_pod, reader) if self._with_nodes else with_priority_label(new_pod)
        if self._with_nodes:
            new_pod = with_queued_request_nodes(new_pod)
        if built_in.may_be_queued(new_pod, reader.get, self._managed_jobs):
            new_pod = queue_pod(new_pod, reader.get, self._managed_jobs, gates_topology=self._gates_topology)
            new_pod = self._with_dependency_gate(new_pod, reader)
        if limit_ranges:
            check_limits(new_pod, limit_ranges)
        if self._with_nodes and self._has_job_sets:
            validate_pod(new_pod, reader)
        built_in.check_pod(new_pod, reader.get)
        return new_pod

    def _with_dependency_gate(self, job: Obj, reader: Reader) -> Obj:
        has_dependencies = annotation(job, AFTER)
        return gate_dependent_job(job, reader.get, self._managed_jobs) if has_dependencies else job

    def _prepare_job(self, job: Obj, reader: Reader) -> Obj:
        queued_job = self._prepare_job_set(job, reader)
        is_gated = self._has_queues and self._rules.elastic_jobs and is_elastic(queued_job)
        return with_selector(gate_elastic_job(queued_job) if is_gated else queued_job)

    def _prepare_job_set(self, job_set: Obj, reader: Reader) -> Obj:
        new_job_set = built_in.queue_job(_without_status(job_set), reader.get, self._managed_jobs)
        new_job_set = self._with_dependency_gate(new_job_set, reader)
        if self._ready_timeout_max is not None and self._managed_jobs.has_kind_of(new_job_set):
            check_ready_timeouts(new_job_set, None, self._ready_timeout_max)
        return new_job_set


def _prepare_priority_class(priority_class: Obj, reader: Reader) -> Obj:
    built_in.check_global_default(priority_class, built_in.find_global_default(reader.list(scheme.PRIORITY_CLASS)))
    return priority_class


def _prepare_namespace(namespace: Obj, _reader: Reader) -> Obj:
    built_in.check_pod_security_labels(namespace)
    return built_in.activated_namespace(namespace)


def _prepare_cluster(cluster: Obj, reader: Reader) -> Obj:
    built_in.check_only_cluster(cluster, reader.list(scheme.CLUSTER))
    _check_catalog(cluster)
    return cluster


def _described_jobs() -> ModuleType:
    from batchyard.jobs.described import controller  # noqa: PLC0415 - CEL takes 0.1 s to load

    return controller


def _serving_admission() -> ModuleType:
    from batchyard.jobs.serving import admission  # noqa: PLC0415 - few platforms have services

    return admission


def _check_job_kind(new: Obj, _old: Obj, _reader: Reader) -> None:
    if errors := list(_described_jobs().expression_errors(new)):
        raise InvalidObject(errors)


def _check_cluster(new: Obj, old: Obj, _reader: Reader) -> None:
    if new["spec"] != old["spec"]:
        _check_catalog(new)


def _check_catalog(cluster: Obj) -> None:
    if errors := catalog_errors(cluster):
        raise InvalidObject(errors)


def _check_on_flavors(new: Obj, _old: Obj, _reader: Reader) -> None:
    if errors := list(on_flavors_errors(new)):
        raise InvalidObject(errors)


def _check_namespace(new: Obj, old: Obj, _reader: Reader) -> None:
    built_in.check_pod_security_labels(new, old)


def _check_priority_class(new: Obj, _old: Obj, reader: Reader) -> None:
    built_in.check_global_default(new, built_in.find_global_default(reader.list(scheme.PRIORITY_CLASS)))


def _without_status(obj: Obj) -> Obj:
    return {field: value for field, value in obj.items() if field != "status"} if "status" in obj else obj
