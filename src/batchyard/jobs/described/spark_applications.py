"""The Kueue integration of SparkApplications: a pod set for the driver and one for the executors.

The Spark operator passes the fields of a SparkApplication to spark-submit, and Spark computes the requests of the pods
from them. The pod sets have the same requests. `spec.driver` and `spec.executor` have the scheduling fields, and
`spec.nodeSelector` holds for both until a start moves it there.

Sources: pkg/controller/jobs/sparkapplication of Kueue 0.20; BasicDriverFeatureStep, BasicExecutorFeatureStep and
ResourceProfile of Spark 3.5.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, QuantityFormat, format_quantity, parse_quantity, with_path
from batchyard.api.schema import validate
from batchyard.api.validation import topology
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.scheduling.workload.adjustments import first_priority_class

_DRIVER: Final = "driver"
_EXECUTOR: Final = "executor"
_ROLES: Final = (_DRIVER, _EXECUTOR)
#: The name of the container of Spark, by role.
_CONTAINERS: Final = {_DRIVER: "spark-kubernetes-driver", _EXECUTOR: "spark-kubernetes-executor"}
#: The container that gets the requests, by role; the first container if there is none of this name.
_REQUESTING_CONTAINERS: Final = {_DRIVER: "spark-kubernetes-driver", _EXECUTOR: "executor"}
_LOCAL_DIR_PREFIX: Final = "spark-local-dir-"
_EXECUTORS_MAX: Final = 2**31 - 1
_MEBIBYTE: Final = 1 << 20
_NANO: Final = 10**9
#: The largest number of bytes of a request.
_BYTES_MAX: Final = 2**63 - 1
_DEFAULT_MEMORY: Final = "1g"
_OVERHEAD_MIN: Final = 384  # MiB
_MEMORY: Final = re.compile(r"([0-9]{1,19})([a-z]+)?")
_FACTOR: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
#: The size in bytes of each unit of Spark.
_UNITS: Final = {"b": 1, **{name: 1024**power for power, unit in enumerate("kmgtp", 1) for name in (unit, f"{unit}b")}}
_LIMIT: Final = re.compile(r"([0-9]+)([kmgtp])b?", re.IGNORECASE)
Part = Mapping[str, Any]


class SparkApplicationIntegration(DescribedJobIntegration):
    """Kueue integration of SparkApplications, which computes the requests of Spark's pods."""

    def pods_ready(self, job: Obj) -> bool:
        """Return whether the driver and all executors run; with dynamic allocation, the least number of executors."""
        if not self.is_active(job):
            return False
        expected = _executor_count(job)
        allocation = workloads.value_at(job, ("spec", "dynamicAllocation")) or {}
        if allocation.get("enabled"):
            expected = allocation.get("minExecutors", expected)
        states = workloads.value_at(job, ("status", "executorState")) or {}
        return sum(state in ("RUNNING", "COMPLETED") for state in states.values()) >= expected

    def pod_class(self, job: Obj) -> str:
        """Return the PriorityClass of the driver, or else of the executors; '' if neither has one."""
        names = (_role_spec(job, role).get("priorityClassName") for role in _ROLES)
        return first_priority_class({"spec": {"priorityClassName": name}} for name in names if name)

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the driver and the executors. Raises ExpressionFailed if a field is invalid."""
        pod_sets = []
        for role, count in zip(_ROLES, (1, _executor_count(job)), strict=True):
            template = _pod_template(job, role)
            pod_sets.append(
                {
                    "name": role,
                    "template": template,
                    "count": count,
                    "topologyRequest": workloads.topology_request(template),
                }
            )
        return pod_sets

    def template_paths(self, job: Obj) -> list[str]:
        """Return the path of the fields of the driver, and that of the executors."""
        return [f"spec.{role}" for role in _ROLES]

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended SparkApplication with the fields of `injections` in its driver and executors.

        Raises InvalidPodSetInfo if the fields conflict, or if there are not two injections.
        """
        if len(injections) != len(_ROLES):
            counts_text = f"expecting {len(_ROLES)} podset, got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {counts_text}")
        common_selector = workloads.value_at(job, ("spec", "nodeSelector"))
        started_job: Obj = with_path(job, self.suspend_path, False)
        for role, injection in zip(_ROLES, injections, strict=True):
            fields = _scheduling_fields(job, role, common_selector)
            started_job = _with_scheduling_fields(started_job, role, workloads.inject_pod_set_info(fields, injection))
        return _without_common_selector(started_job)

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the write that suspends the SparkApplication and restores its fields; None if already suspended.

        The fields are restored only if `pod_set_infos` has two items.
        """
        if self.is_suspended(job):
            return None
        stopped_job: Obj = with_path(job, self.suspend_path, True)
        if len(pod_set_infos) == len(_ROLES):
            for role, info in zip(_ROLES, pod_set_infos, strict=True):
                fields = workloads.restore_pod_set_info(_scheduling_fields(job, role, None), info)
                stopped_job = _with_scheduling_fields(stopped_job, role, fields)
            stopped_job = with_path(stopped_job, ("spec", _EXECUTOR, "instances"), pod_set_infos[1].count)
            stopped_job = _without_common_selector(stopped_job)
        return Update(stopped_job)

    def topology_errors(self, job: Obj) -> Iterator[FieldError]:
        """Yield the errors of topology annotations, or the reason for which the pod sets cannot be computed."""
        try:
            pod_sets = self.pod_sets(job)
        except ExpressionFailed as error:
            yield FieldError("", str(error), "correct the field of the SparkApplication")
            return
        for pod_set, path in zip(pod_sets, self.template_paths(job), strict=True):
            annotations = (pod_set["template"].get("metadata") or {}).get("annotations") or {}
            yield from topology.topology_request_errors(annotations, f"{path}.annotations", pod_set["count"])

    def simulated_status(self, state: str, job: Obj) -> Mapping[str, Any] | None:
        """Return the status of a SparkApplication in a simulation, with the state of each executor that runs."""
        status = super().simulated_status(state, job)
        if status is None or state != "ready":
            return status
        names = (f"{job['metadata']['name']}-exec-{index + 1}" for index in range(_executor_count(job)))
        return {**status, "executorState": dict.fromkeys(names, "RUNNING")}


def _role_spec(job: Obj, role: str) -> Part:
    spec = workloads.value_at(job, ("spec", role))
    return spec if isinstance(spec, Mapping) else {}


def _executor_count(job: Obj) -> int:
    count = _role_spec(job, _EXECUTOR).get("instances", 0)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _EXECUTORS_MAX:
        raise ExpressionFailed(f"spec.executor.instances must be a whole number from 0 to {_EXECUTORS_MAX}")
    return count


# --- scheduling fields ---


def _scheduling_fields(job: Obj, role: str, common_selector: Part | None) -> dict[str, Any]:
    """Return the scheduling fields of a role in the form of a pod template."""
    spec = _role_spec(job, role)
    gates = workloads.value_at(spec, ("template", "spec", "schedulingGates"))
    selector = spec.get("nodeSelector") if common_selector is None else common_selector
    return {
        "metadata": {"labels": spec.get("labels"), "annotations": spec.get("annotations")},
        "spec": {"nodeSelector": selector, "tolerations": spec.get("tolerations"), "schedulingGates": gates},
    }


def _with_scheduling_fields(job: Obj, role: str, fields: Part) -> Obj:
    metadata, pod_spec = fields.get("metadata") or {}, fields.get("spec") or {}
    values = {
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
        "nodeSelector": pod_spec.get("nodeSelector"),
        "tolerations": pod_spec.get("tolerations"),
    }
    spec = {**_role_spec(job, role), **values}
    if not spec.get("template"):
        spec["template"] = {"spec": {"containers": [{"name": _CONTAINERS[role]}]}}
    spec = with_path(spec, ("template", "spec", "schedulingGates"), pod_spec.get("schedulingGates") or None)
    changed_job: Obj = with_path(
        job, ("spec", role), {name: value for name, value in spec.items() if value is not None}
    )
    return changed_job


def _without_common_selector(job: Obj) -> Obj:
    return {**job, "spec": {name: value for name, value in (job.get("spec") or {}).items() if name != "nodeSelector"}}


# --- pod templates ---


def _pod_template(job: Obj, role: str) -> dict[str, Any]:
    """Return the pod template of a role, with the fields that decisions depend on.

    Raises ExpressionFailed if a field is invalid.
    """
    spec = _role_spec(job, role)
    containers: list[Part] = [{"name": _CONTAINERS[role]}]
    containers += _new_containers(containers, spec.get("sidecars"))
    names = [container.get("name") for container in containers]
    wanted_name = _REQUESTING_CONTAINERS[role]
    position = names.index(wanted_name) if wanted_name in names else 0
    volumes, mounts = _volumes(job, spec)
    containers[position] = _requesting_container(containers[position], mounts, _SparkSettings(job, role))
    pod_spec = {
        "containers": containers,
        "initContainers": _new_containers([], spec.get("initContainers")),
        "volumes": volumes,
        "priorityClassName": spec.get("priorityClassName"),
        "nodeSelector": spec.get("nodeSelector") or workloads.value_at(job, ("spec", "nodeSelector")),
        "affinity": spec.get("affinity"),
        "tolerations": spec.get("tolerations"),
    }
    base = workloads.value_at(spec, ("template", "metadata")) or {}
    metadata = {name: {**(base.get(name) or {}), **(spec.get(name) or {})} for name in ("labels", "annotations")}
    metadata = {name: value for name, value in metadata.items() if value}
    template = {"spec": {name: value for name, value in pod_spec.items() if value}}
    template |= {"metadata": metadata} if metadata else {}
    if errors := validate("PodTemplateSpec", template):
        raise ExpressionFailed(f"spec.{role} is invalid: {errors[0]}")
    return template


def _new_containers(containers: Sequence[Part], added: Any) -> list[Part]:
    """Return the added containers without those whose name and image another one has."""
    known = {(container.get("name"), container.get("image")) for container in containers}
    new_containers = []
    for container in added if isinstance(added, list) else ():
        identity = container.get("name"), container.get("image")
        if identity not in known:
            known.add(identity)
            new_containers.append(container)
    return new_containers


def _volumes(job: Obj, spec: Part) -> tuple[list[Part], list[Part]]:
    """Return the volumes that a role mounts, and their mounts."""
    volumes = {each.get("name"): each for each in workloads.value_at(job, ("spec", "volumes")) or ()}
    mounts = [
        each
        for each in spec.get("volumeMounts") or ()
        if each.get("name") in volumes and not str(each.get("name")).startswith(_LOCAL_DIR_PREFIX)
    ]
    return [volumes[name] for name in dict.fromkeys(each["name"] for each in mounts)], mounts


def _requesting_container(container: Part, mounts: Sequence[Part], settings: "_SparkSettings") -> Part:
    resources = container.get("resources") or {}
    requests = {**(resources.get("requests") or {}), "cpu": settings.cpu(), "memory": settings.memory()}
    limits = {**(resources.get("limits") or {}), **settings.limits()}
    container = {**container, "resources": {"requests": requests, **({"limits": limits} if limits else {})}}
    mounts = [*(container.get("volumeMounts") or ()), *mounts]
    return {**container, "volumeMounts": mounts} if mounts else container


class _SparkSettings:
    """Computes the resources of a role from its fields and from `spec.sparkConf`, as Spark does."""

    def __init__(self, job: Obj, role: str) -> None:
        self._role = role
        self._spec = _role_spec(job, role)
        self._job_spec: Part = job.get("spec") or {}
        self._conf: Part = self._job_spec.get("sparkConf") or {}
        self._is_python = self._job_spec.get("type") == "Python"

    def cpu(self) -> str:
        """Return the CPU request: `coreRequest`, else `cores`, else 1."""
        request = self._value("coreRequest", f"spark.kubernetes.{self._role}.request.cores")
        if request is not None:
            return self._quantity("coreRequest", str(request))
        cores = str(self._value("cores", f"spark.{self._role}.cores", 1))
        if not re.fullmatch(r"[0-9]{1,10}", cores) or int(cores) > _EXECUTORS_MAX:
            raise ExpressionFailed(f"spec.{self._role}.cores must be a whole number, not {cores!r:.100}")
        return str(int(cores))

    def memory(self) -> str:
        """Return the memory request: the memory with its overhead, and what executors need outside of Java."""
        memory = self._mebibytes("memory", self._value("memory", f"spark.{self._role}.memory", _DEFAULT_MEMORY))
        overhead = self._value("memoryOverhead", f"spark.{self._role}.memoryOverhead")
        total = memory
        if overhead is None:
            total += max(int(self._overhead_factor() * memory), _OVERHEAD_MIN)
        else:
            total += self._mebibytes("memoryOverhead", overhead)
        if self._role == _EXECUTOR:
            total += self._memory_outside_of_java()
        if total * _MEBIBYTE > _BYTES_MAX:
            raise ExpressionFailed(f"spec.{self._role}.memory with its overhead is too large")
        return format_quantity(total * _MEBIBYTE * _NANO, QuantityFormat.BINARY)

    def limits(self) -> dict[str, str]:
        """Return the limits: `coreLimit`, `memoryLimit` and `gpu`."""
        limits: dict[str, str] = {}
        if self._spec.get("coreLimit") is not None:
            limits["cpu"] = self._quantity("coreLimit", str(self._spec["coreLimit"]))
        if self._spec.get("memoryLimit") is not None:
            text = str(self._spec["memoryLimit"])
            match = _LIMIT.fullmatch(text)
            text = text if match is None else f"{match[1]}{match[2].upper()}i"
            limits["memory"] = self._quantity("memoryLimit", text)
        gpu = self._spec.get("gpu") or {}
        if gpu.get("name") and gpu.get("quantity", 0) > 0:
            limits[gpu["name"]] = str(gpu["quantity"])
        return limits

    def _value(self, field: str, conf_key: str, default: Any = None) -> Any:
        """Return a field of the role, or else the property of `spec.sparkConf`, as spark-submit does."""
        value = self._spec.get(field)
        return self._conf.get(conf_key, default) if value is None else value

    def _quantity(self, field: str, text: str) -> str:
        try:
            parse_quantity(text)
        except ValueError as error:
            raise ExpressionFailed(f"spec.{self._role}.{field}: {error}") from error
        return text

    def _overhead_factor(self) -> float:
        keys = f"spark.{self._role}.memoryOverheadFactor", "spark.kubernetes.memoryOverheadFactor"
        text = next((self._conf[key] for key in keys if key in self._conf), None)
        if text is None:
            text = self._job_spec.get("memoryOverheadFactor") or None
        if text is None:
            return 0.4 if self._is_python or self._job_spec.get("type") == "R" else 0.1
        if not _FACTOR.fullmatch(str(text)):
            raise ExpressionFailed(f"invalid memory overhead factor {text!r:.100}: must be a non-negative number")
        return float(text)

    def _memory_outside_of_java(self) -> int:
        mebibytes = 0
        if self._is_python and (python_memory := self._conf.get("spark.executor.pyspark.memory")) is not None:
            mebibytes += self._mebibytes("spark.executor.pyspark.memory", python_memory)
        size = self._conf.get("spark.memory.offHeap.size")
        if size is not None and str(self._conf.get("spark.memory.offHeap.enabled", "")).lower() == "true":
            mebibytes += self._bytes("spark.memory.offHeap.size", size, 1) // _MEBIBYTE
        return mebibytes

    def _mebibytes(self, field: str, value: Any) -> int:
        return self._bytes(field, value, _MEBIBYTE) // _MEBIBYTE

    def _bytes(self, field: str, value: Any, default_unit: int) -> int:
        """Return a size of Spark such as `512m` in bytes; a number without unit has `default_unit`."""
        match = _MEMORY.fullmatch(str(value).strip().lower())
        unit = None if match is None else _UNITS.get(match[2], 0) if match[2] else default_unit
        if match is None or not unit or int(match[1]) * unit > _BYTES_MAX:
            place = field if field.startswith("spark.") else f"spec.{self._role}.{field}"
            raise ExpressionFailed(f"{place}: {value!r:.100} is not a size such as 512m or 2g")
        return int(match[1]) * unit
