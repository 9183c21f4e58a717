"""The pods and Services of a RayCluster: labels, the command line of `ray start`, environment and probes.

Source: ray-operator/controllers/ray/common (pod.go, service.go) of KubeRay. The variables and annotations by which
KubeRay reports its own version are left out.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.meta import NANO, Obj, amount, annotation, controller_reference, parse_quantity
from batchyard.jobs.stand_ins import ray_nodes
from batchyard.jobs.stand_ins.ray_nodes import HeadGroup, WorkerGroup, parse_cluster_fields

_POD_NAME_PREFIX_LENGTH_MAX: Final = 50
_HOST_INDEX_LABEL: Final = "ray.io/replica-host-index"
_HEADLESS_SERVICE_LABEL: Final = "ray.io/headless-worker-svc"
_APPLICATION_LABEL: Final = "app.kubernetes.io/name"
_OWN_COMMAND_ANNOTATION: Final = "ray.io/overwrite-container-cmd"
_NO_HEAD_RESTART_ANNOTATION: Final = "ray.io/disable-provisioned-head-restart"
_HEAD_GROUP: Final = "headgroup"
_BASH: Final = ["/bin/bash", "-c", "--"]
_GCS_PORT: Final = "6379"
_METRICS_PORT: Final = 8080
_AGENT_PORT: Final = "52365"
_DASHBOARD_PORT: Final = "8265"
#: The ports of the head's Service if the head's container has none.
_DEFAULT_PORTS: Final = {"client": 10001, "gcs-server": 6379, "dashboard": 8265, "metrics": 8080, "serve": 8000}
_SHARED_MEMORY: Final = {"name": "shared-mem", "mountPath": "/dev/shm"}  # noqa: S108 - a path of the container
#: The names in Ray of resources of Kubernetes.
_RAY_RESOURCE_NAMES: Final = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}
_GPU_PARTITION_PATTERN: Final = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb\Z", re.ASCII)
_VERSION_PATTERN: Final = re.compile(r"\s*v?(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)
#: The first version of Ray whose nodes serve one path for their health.
_FIRST_VERSION_WITH_HEALTH_PATH: Final = (2, 53)
#: The parameters of `ray start` with a value `true` or `false`. All others with such a value are flags.
_BOOLEAN_PARAMETERS: Final = ("log-color", "include-dashboard", "include-log-monitor")

_Variables: TypeAlias = Sequence[Mapping[str, Any]]


class WorkerPosition(NamedTuple):
    """The position of a worker in its group: the name and index of its replica, and its index in the replica."""

    replica_name: str
    replica_index: int
    host_index: int = 0


class RayCluster:
    """A valid RayCluster: its fields, and the manifests of its pods and Services."""

    __slots__ = ("_head_port", "fields", "name", "namespace", "obj", "spec")

    def __init__(self, obj: Obj) -> None:
        """Parse a RayCluster. Raises InvalidRayObject."""
        self.obj, self.spec = obj, obj.get("spec") or {}
        self.name, self.namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        self.fields = parse_cluster_fields(self.spec, obj)
        self._head_port = (self.fields.head_group_spec.ray_start_params or {}).get("port", _GCS_PORT)

    @property
    def groups(self) -> Sequence[WorkerGroup]:
        """The worker groups."""
        return self.fields.groups

    @property
    def desired_workers(self) -> int:
        """The number of workers of all groups."""
        return sum(group.desired_pods for group in self.groups)

    @property
    def keeps_lost_head(self) -> bool:
        """Whether a head that is lost after the cluster has been ready is not replaced."""
        return annotation(self.obj, _NO_HEAD_RESTART_ANNOTATION) == "true"

    @property
    def head_service_name(self) -> str:
        """The name of the head's Service."""
        custom = self.fields.head_group_spec.head_service
        name = custom.metadata.name if custom is not None and custom.metadata is not None else ""
        return name or f"{self.name}-{ray_nodes.HEAD}-svc"

    @property
    def head_address(self) -> str:
        """The DNS name of the head's Service."""
        return f"{self.head_service_name}.{self.namespace}.svc.cluster.local"

    @property
    def head_pod_prefix(self) -> str:
        """The beginning of the name of the head's pod."""
        return f"{self.name[:_POD_NAME_PREFIX_LENGTH_MAX]}-{ray_nodes.HEAD}-".lower()

    def worker_pod_prefix(self, group: WorkerGroup) -> str:
        """Return the beginning of the names of a group's pods."""
        return f"{f'{self.name}-{group.group_name}'[:_POD_NAME_PREFIX_LENGTH_MAX]}-{ray_nodes.WORKER}-".lower()

    # --- pods ---

    def new_head_pod(self, name: str) -> Obj:
        """Return the manifest of the head's pod."""
        group, template = self.fields.head_group_spec, self.spec["headGroupSpec"]["template"]
        metadata = self._pod_metadata(name, template, group)
        metadata["annotations"] = {**metadata["annotations"], ray_nodes.FAULT_TOLERANCE_ANNOTATION: "false"}
        return self._new_pod(metadata, template, group)

    def new_worker_pod(self, name: str, group: WorkerGroup, position: WorkerPosition) -> Obj:
        """Return the manifest of a worker's pod, whose init container waits for the head."""
        groups = self.spec["workerGroupSpecs"]
        template = next(each["template"] for each in groups if each["groupName"] == group.group_name)
        metadata = self._pod_metadata(name, template, group)
        metadata["labels"][ray_nodes.REPLICA_INDEX_LABEL] = str(position.replica_index)
        if group.hosts > 1:
            metadata["labels"][ray_nodes.REPLICA_NAME_LABEL] = position.replica_name
            metadata["labels"][_HOST_INDEX_LABEL] = str(position.host_index)
        waiting = self._waiting_container(template["spec"]["containers"][0])
        spec = {**template["spec"], "initContainers": [*(template["spec"].get("initContainers") or ()), waiting]}
        return self._new_pod(metadata, {**template, "spec": spec}, group)

    def _pod_metadata(self, name: str, template: Obj, group: HeadGroup | WorkerGroup) -> dict[str, Any]:
        metadata = template.get("metadata") or {}
        is_head = isinstance(group, HeadGroup)
        node_type = ray_nodes.HEAD if is_head else ray_nodes.WORKER
        fixed = {
            ray_nodes.CLUSTER_LABEL: self.name,
            ray_nodes.NODE_TYPE_LABEL: node_type,
            ray_nodes.GROUP_LABEL: _HEAD_GROUP if isinstance(group, HeadGroup) else group.group_name,
        }
        defaults = {**_service_labels(self.name, node_type), "ray.io/is-ray-node": "yes"}
        own_command = {_OWN_COMMAND_ANNOTATION: "true"} if self._has_own_command else {}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": {**defaults, **(metadata.get("labels") or {}), **(group.labels or {}), **fixed},
            "annotations": {**(metadata.get("annotations") or {}), **own_command},
            **({"finalizers": metadata["finalizers"]} if metadata.get("finalizers") else {}),
            "ownerReferences": [controller_reference(self.obj)],
        }

    def _new_pod(self, metadata: Obj, template: Obj, group: HeadGroup | WorkerGroup) -> Obj:
        spec, params = dict(template["spec"]), group.ray_start_params or {}
        first, *others = spec["containers"]
        container = self._ray_container(first, self.start_command(group, first), group)
        mount_paths = [each.get("mountPath") for each in first.get("volumeMounts") or ()]
        if "plasma-directory" not in params and _SHARED_MEMORY["mountPath"] not in mount_paths:
            container["volumeMounts"] = [*(first.get("volumeMounts") or ()), _SHARED_MEMORY]
            volumes = spec.get("volumes") or ()
            if all(each.get("name") != _SHARED_MEMORY["name"] for each in volumes):
                spec["volumes"] = [*volumes, _shared_memory_volume(first)]
        spec["containers"] = [container, *others]
        if spec.get("initContainers"):
            spec["initContainers"] = [_with_env(each, self._head_variables()) for each in spec["initContainers"]]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _ray_container(self, container: Obj, command: str, group: HeadGroup | WorkerGroup) -> dict[str, Any]:
        is_head = isinstance(group, HeadGroup)
        completed = _with_env(container, self._ray_variables(container, command, is_head=is_head))
        ports = container.get("ports") or ()
        if all(port.get("name") != "metrics" for port in ports):
            completed["ports"] = [*ports, {"name": "metrics", "containerPort": _METRICS_PORT}]
        given = "".join(f" {word} " for word in [*(container.get("command") or ()), *(container.get("args") or ())])
        if not self._has_own_command and "ray start" not in given:
            generated = f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {command}"
            completed |= {"command": _BASH, "args": [f"{given} && {generated}" if given else generated]}
        probes = _probes(group.ray_start_params or {}, self.fields.ray_version, is_head=is_head)
        return {**completed, **{name: probe for name, probe in probes.items() if not container.get(name)}}

    @property
    def _has_own_command(self) -> bool:
        return (annotation(self.obj, _OWN_COMMAND_ANNOTATION) or "").lower() == "true"

    def _ray_variables(self, container: Obj, command: str, *, is_head: bool) -> _Variables:
        address = "127.0.0.1" if is_head else self.head_address
        managed: list[Mapping[str, Any]] = [
            *(() if is_head else self._head_variables()),
            _field_variable("RAY_CLUSTER_NAME", f"metadata.labels['{ray_nodes.CLUSTER_LABEL}']"),
            _field_variable("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
            _field_variable("RAY_CLOUD_INSTANCE_ID", "metadata.name"),
            _field_variable("RAY_NODE_TYPE_NAME", f"metadata.labels['{ray_nodes.GROUP_LABEL}']"),
            {"name": "KUBERAY_GEN_RAY_START_CMD", "value": command},
        ]
        defaults = {
            "RAY_PORT": self._head_port,
            "RAY_ADDRESS": f"{address}:{self._head_port}",
            "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
        }
        given = [each.get("name") for each in container.get("env") or ()]
        return [*managed, *({"name": name, "value": value} for name, value in defaults.items() if name not in given)]

    def _head_variables(self) -> _Variables:
        values = {"FQ_RAY_IP": self.head_address, "RAY_IP": self.head_service_name}
        return [{"name": name, "value": value} for name, value in values.items()]

    def _waiting_container(self, container: Obj) -> Obj:
        """Return the init container of workers, which waits for the control service (GCS) of the head."""
        address, amounts = f"{self.head_address}:{self._head_port}", {"cpu": "200m", "memory": "256Mi"}
        message = f'echo "no GCS at {address} after $SECONDS seconds"'
        script = f"until ray health-check --address {address} > /dev/null 2>&1; do {message}; sleep 5; done"
        copied = ("image", "imagePullPolicy", "securityContext", "env", "volumeMounts")
        return {
            "name": "wait-gcs-ready",
            **{field: container[field] for field in copied if container.get(field)},
            "command": _BASH,
            "args": [script],
            "resources": {"limits": amounts, "requests": amounts},
        }

    def start_command(self, group: HeadGroup | WorkerGroup, container: Obj) -> str:
        """Return the command line of `ray start` for the first container of a group's pods."""
        params = dict(group.ray_start_params or {})
        _add_group_resources(params, group.resources or {})
        if group.labels:
            params["labels"] = ",".join(f"{name}={value}" for name, value in sorted(group.labels.items()))
        if isinstance(group, HeadGroup):
            params.setdefault("dashboard-host", "0.0.0.0")  # noqa: S104 - the network of the pod
        else:
            params.setdefault("address", f"{self.head_address}:{self._head_port}")
        params.setdefault("metrics-export-port", str(_METRICS_PORT))
        params["block"] = "true"
        params.setdefault("dashboard-agent-listen-port", _AGENT_PORT)
        _add_container_resources(params, container.get("resources") or {})
        return f"ray start {'--head ' if isinstance(group, HeadGroup) else ''}{_flags(params)}"

    # --- Services ---

    def new_head_service(self) -> Obj:
        """Return the manifest of the Service of the head, which is headless by default."""
        group, labels = self.fields.head_group_spec, _service_labels(self.name, ray_nodes.HEAD)
        template_metadata = group.template.metadata
        template_labels = {} if template_metadata is None else template_metadata.labels or {}
        labels[_APPLICATION_LABEL] = template_labels.get(_APPLICATION_LABEL, labels[_APPLICATION_LABEL])
        custom = self.spec["headGroupSpec"].get("headService") or {}
        custom_metadata, custom_spec = custom.get("metadata") or {}, custom.get("spec") or {}
        annotations = {**(custom_metadata.get("annotations") or {}), **(self.fields.head_service_annotations or {})}
        spec: dict[str, Any] = {"selector": labels, "ports": self._head_service_ports()}
        service_type = custom_spec.get("type") or group.service_type
        if custom:
            spec = {**custom_spec, **spec, "ports": [*(custom_spec.get("ports") or ()), *spec["ports"]]}
        elif service_type in ("", "ClusterIP"):
            spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
        if service_type:
            spec["type"] = service_type
        service = self._service(self.head_service_name, {**(custom_metadata.get("labels") or {}), **labels}, spec)
        if annotations:
            service["metadata"]["annotations"] = annotations
        return service

    def new_worker_service(self) -> Obj | None:
        """Return the manifest of the headless Service of workers; None unless a replica of a group has several pods."""
        if all(group.hosts == 1 for group in self.groups):
            return None
        selector = {ray_nodes.CLUSTER_LABEL: self.name, ray_nodes.NODE_TYPE_LABEL: ray_nodes.WORKER}
        spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}
        return self._service(f"{self.name}-headless", {_HEADLESS_SERVICE_LABEL: self.name}, spec)

    def _service(self, name: str, labels: Mapping[str, str], spec: Obj) -> dict[str, Any]:
        owners = [controller_reference(self.obj)]
        metadata = {"name": name, "namespace": self.namespace, "labels": dict(labels), "ownerReferences": owners}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def _head_service_ports(self) -> list[dict[str, Any]]:
        container = self.spec["headGroupSpec"]["template"]["spec"]["containers"][0]
        given = container.get("ports") or ()
        ports = {each.get("name") or f"{each['containerPort']}-port": each["containerPort"] for each in given}
        ports = {"metrics": _METRICS_PORT, **(ports or _DEFAULT_PORTS)}
        return [{"name": name, "port": port, "appProtocol": "tcp"} for name, port in sorted(ports.items())]

    def desired_resources(self) -> dict[str, int]:
        """Return the requests of all pods by resource, in billionths; limits count where there are no requests."""
        groups = zip(self.groups, self.spec.get("workerGroupSpecs") or (), strict=True)
        templates = [(self.spec["headGroupSpec"]["template"], 1)]
        templates += [(raw["template"], (g.replicas or 0) * g.hosts) for g, raw in groups if not g.suspend]
        totals: dict[str, int] = {}
        for template, count in templates:
            for container in template["spec"]["containers"]:
                resources = container.get("resources") or {}
                for name, quantity in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                    totals[name] = totals.get(name, 0) + parse_quantity(quantity) * count
        return totals


def is_gpu(resource: str) -> bool:
    """Return whether Ray counts a resource of Kubernetes as GPUs."""
    return resource.endswith("gpu") or _GPU_PARTITION_PATTERN.search(resource) is not None


def _service_labels(cluster_name: str, node_type: str) -> dict[str, str]:
    return {
        ray_nodes.CLUSTER_LABEL: cluster_name,
        ray_nodes.NODE_TYPE_LABEL: node_type,
        ray_nodes.IDENTIFIER_LABEL: f"{cluster_name}-{node_type}",
        _APPLICATION_LABEL: "kuberay",
        ray_nodes.CREATED_BY_LABEL: ray_nodes.COMPONENT,
    }


def _shared_memory_volume(container: Obj) -> dict[str, Any]:
    resources = container.get("resources") or {}
    size = (resources.get("limits") or {}).get("memory") or (resources.get("requests") or {}).get("memory")
    return {"name": _SHARED_MEMORY["name"], "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}


def _with_env(container: Obj, variables: _Variables) -> dict[str, Any]:
    return {**container, "env": [*(container.get("env") or ()), *variables]}


def _field_variable(name: str, path: str) -> Mapping[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


# The parameters of `ray start`.


def _flags(params: Mapping[str, str]) -> str:
    flags = []
    for name, value in sorted(params.items()):
        if value.lower() in ("true", "false") and name not in _BOOLEAN_PARAMETERS:
            flags += [f" --{name} "] if value.lower() == "true" else []
        else:
            flags.append(f" --{name}={value} ")
    return "".join(flags)


def _add_group_resources(params: dict[str, str], resources: Mapping[str, str]) -> None:
    """Set the parameters for the `resources` of a group, without the quantities that cannot be parsed."""
    others: dict[str, float] = {}
    for name, quantity in resources.items():
        try:
            units = amount("units", quantity)
        except ValueError:
            continue
        if name.lower() in ("cpu", "memory"):
            params["num-cpus" if name.lower() == "cpu" else "memory"] = str(units)
        elif is_gpu(name.lower()):
            params["num-gpus"] = str(units)
        else:
            others[name] = parse_quantity(quantity) / NANO
    if others:
        params["resources"] = _quoted_json(others)


def _add_container_resources(params: dict[str, str], resources: Obj) -> None:
    """Set the parameters for the limits and requests of a container, unless they are set."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, quantity in (("num-cpus", limits.get("cpu") or requests.get("cpu")), ("memory", limits.get("memory"))):
        if quantity and amount("units", quantity):
            params.setdefault(name, str(amount("units", quantity)))
    try:
        known = json.loads(params.get("resources", "{}").strip("'\"` "))
    except ValueError:
        return
    for name, quantity in sorted(limits.items()):
        if is_gpu(name) and amount("units", quantity):
            params.setdefault("num-gpus", str(amount("units", quantity)))
        ray_name = _RAY_RESOURCE_NAMES.get(name)
        if ray_name is None or not isinstance(known, dict) or not amount("units", quantity):
            continue
        if known.keys().isdisjoint(_RAY_RESOURCE_NAMES.values()):
            known[ray_name] = parse_quantity(quantity) / NANO
            params["resources"] = _quoted_json(known)


def _quoted_json(values: Mapping[str, Any]) -> str:
    is_whole = {name: isinstance(value, float) and value.is_integer() for name, value in values.items()}
    numbers = {name: int(value) if is_whole[name] else value for name, value in values.items()}
    return f"'{json.dumps(numbers, separators=(',', ':'), sort_keys=True)}'"


# Probes of the Ray container.


def _probes(params: Mapping[str, str], version: str, *, is_head: bool) -> dict[str, dict[str, Any]]:
    check = _health_check(params, version, is_head=is_head)
    times = {"timeoutSeconds": 5 if is_head else 2, "periodSeconds": 5, "successThreshold": 1}
    return {
        "livenessProbe": {**check, **times, "initialDelaySeconds": 30, "failureThreshold": 120},
        "readinessProbe": {**check, **times, "initialDelaySeconds": 10, "failureThreshold": 10},
    }


def _health_check(params: Mapping[str, str], version: str, *, is_head: bool) -> dict[str, Any]:
    """Return the action of a probe: one HTTP request, or requests by wget for Ray before 2.53 and without a version."""
    agent_port = _port_of(params, "dashboard-agent-listen-port", _AGENT_PORT)
    if _has_health_path(version):
        return {"httpGet": {"path": "/api/healthz", "port": int(agent_port)}}
    commands = [_wget_command(2, agent_port, "api/local_raylet_healthz")]
    if is_head:
        commands.append(_wget_command(10, _port_of(params, "dashboard-port", _DASHBOARD_PORT), "api/gcs_healthz"))
    return {"exec": {"command": ["bash", "-c", " && ".join(commands)]}}


def _wget_command(seconds: int, port: str, path: str) -> str:
    return f"wget --tries 1 -T {seconds} -q -O- http://localhost:{port}/{path} | grep success"


def _port_of(params: Mapping[str, str], name: str, default: str) -> str:
    value = params.get(name, default)
    return value if value.isascii() and value.isdecimal() and len(value) <= 5 else default


def _has_health_path(version: str) -> bool:
    match = _VERSION_PATTERN.match(version)
    return match is not None and (int(match[1]), int(match[2])) >= _FIRST_VERSION_WITH_HEALTH_PATH
