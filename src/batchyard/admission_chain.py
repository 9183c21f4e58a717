"""Admission chain: defaulting, admission plugins, webhooks, in order.

The order is that of Kubernetes: mutating plugins, then validating plugins, then quota.
Source: pkg/kubeapiserver/options/plugins.go; docs/admission.md lists the plugins.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from batchyard.admission_plugins.built_in import (
    admit_pod,
    check_default,
    check_deletion,
    check_labels,
    check_namespace,
    check_pod,
    check_pod_change,
    check_queue_kept,
    default_class,
    queue_job,
    taken_up,
)
from batchyard.admission_plugins.limit_ranges import check_limits, with_limit_defaults
from batchyard.admission_plugins.service_accounts import VOLUME_PREFIX, with_service_account
from batchyard.api import scheme
from batchyard.api.defaults import pod_defaults
from batchyard.api.meta import Obj, Selector
from batchyard.autoscaler.provisioning_request_pods import admit_queued_pod
from batchyard.base import uid_for
from batchyard.client.local import ANY_OTHER, AdmissionHooks, Check, Prepare, generated_name
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.jobs.job.spec import with_selector
from batchyard.jobs.jobset.exclusive_placement import mutate_pod, validate_pod, with_priority
from batchyard.kubelet.simulated.durations import with_work_finalizer
from batchyard.quotas.resource_quotas import QuotaAdmission

_NAMESPACED: Final = tuple(info.constant for info in scheme.KINDS if info.namespaced)


class AdmissionChain:
    """The plugins of a platform, with the quota usage that they observe. It must observe every change in order."""

    def __init__(self, *, with_nodes: bool, with_api: bool, managed_namespaces: Selector | None = None) -> None:
        self._with_nodes = with_nodes
        self._with_api = with_api
        #: Selects the Namespaces whose jobs are managed; None: all.
        self._managed_namespaces = managed_namespaces
        self._quotas = QuotaAdmission()

    def observe(self, event: WatchEvent) -> None:
        """Record a change."""
        self._quotas.observe(event)

    def rules(self) -> AdmissionHooks:
        """The admission rules for created, updated and deleted objects."""
        return AdmissionHooks(self._preparations(), {scheme.NAMESPACE: check_deletion}, self._checks())

    def _preparations(self) -> Mapping[str, Prepare]:
        further: Mapping[str, Prepare] = {
            scheme.POD: self._prepared_pod,
            scheme.JOB: self._prepared_job,
            scheme.JOB_SET: self._prepared_job_set,
        }
        prepared: dict[str, Prepare] = {kind: partial(self._prepared, further.get(kind)) for kind in _NAMESPACED}
        if self._with_api:
            prepared |= {ANY_OTHER: self._prepare_custom_object, scheme.PRIORITY_CLASS: _prepared_class}
            prepared[scheme.NAMESPACE] = _prepared_namespace
        return prepared

    def _checks(self) -> Mapping[str, Check]:
        checks: dict[str, Check] = {scheme.POD: self._check_pod, scheme.SERVICE: self._quotas.check_changed}
        checks |= dict.fromkeys((scheme.JOB, scheme.JOB_SET), _check_queue)
        if self._with_api:
            checks |= {scheme.PRIORITY_CLASS: _check_class, scheme.NAMESPACE: _check_namespace}
        return checks

    def _check_pod(self, new: Obj, old: Obj, reader: Reader) -> None:
        check_pod_change(new, old, reader.get)
        self._quotas.check_changed(new, old, reader)

    def _prepared(self, further: Prepare | None, obj: Obj, reader: Reader) -> Obj:
        """Prepare an object of a namespaced kind."""
        check_namespace(obj, reader.get)
        done = obj if further is None else further(obj, reader)
        self._quotas.check_new(done, reader)
        return done

    def _prepare_custom_object(self, obj: Obj, reader: Reader) -> Obj:
        """Prepare an object of a user-defined kind: only the object shows whether the kind is namespaced."""
        return self._prepared(None, obj, reader) if obj["metadata"].get("namespace") else obj

    def _prepared_pod(self, pod: Obj, reader: Reader) -> Obj:
        ranges: Sequence[Obj] = reader.list(scheme.LIMIT_RANGE, pod["metadata"].get("namespace", ""))
        done = with_limit_defaults(pod_defaults(pod), ranges) if ranges else pod
        if self._with_api:
            volume = generated_name(VOLUME_PREFIX, uid_for(0, VOLUME_PREFIX, pod["metadata"]["uid"]))
            done = with_service_account(done, reader.get, volume)
        classes = reader.list(scheme.PRIORITY_CLASS)
        done = with_work_finalizer(admit_pod(done, reader.get, default_class(classes)), reader)
        done = admit_queued_pod(mutate_pod(done, reader)) if self._with_nodes else with_priority(done)
        if ranges:
            check_limits(done, ranges)
        if self._with_nodes:
            validate_pod(done, reader)
        check_pod(done, reader.get)
        return done

    def _prepared_job(self, job: Obj, reader: Reader) -> Obj:
        return with_selector(self._prepared_job_set(job, reader))

    def _prepared_job_set(self, job_set: Obj, reader: Reader) -> Obj:
        return queue_job(_without_status(job_set), reader.get, self._managed_namespaces)


def _prepared_class(priority_class: Obj, reader: Reader) -> Obj:
    check_default(priority_class, default_class(reader.list(scheme.PRIORITY_CLASS)))
    return priority_class


def _prepared_namespace(namespace: Obj, _reader: Reader) -> Obj:
    check_labels(namespace)
    return taken_up(namespace)


def _check_namespace(new: Obj, old: Obj, _reader: Reader) -> None:
    check_labels(new, old)


def _check_queue(new: Obj, old: Obj, reader: Reader) -> None:
    check_queue_kept(new, old, reader.get)


def _check_class(new: Obj, _old: Obj, reader: Reader) -> None:
    check_default(new, default_class(reader.list(scheme.PRIORITY_CLASS)))


def _without_status(obj: Obj) -> Obj:
    """A new object without the status that its manifest may contain."""
    return {field: value for field, value in obj.items() if field != "status"} if "status" in obj else obj
