"""Common parts of the monitoring stack: namespace, labels, and Deployments for the restricted pod security standard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.provision.manifests.rendered import labels_of, obj_of
from batchyard.provision.model import Part, PlatformModel

NAMESPACE: Final = "monitoring"
NAME_LABEL: Final = "app.kubernetes.io/name"
#: A digest of the configuration, whose change restarts the pods.
_DIGEST: Final = "batchyard.dev/configuration"
_RESTRICTED: Final[Mapping[str, str]] = {"pod-security.kubernetes.io/enforce": "restricted"}
_RIGHTS: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Server:
    """A Deployment of one pod that serves HTTP."""

    name: str
    image: str
    port: int
    #: The path of its readiness probe.
    ready: str
    #: The user ID it runs as, not root.
    user: int
    requests: Mapping[str, str]
    memory_limit: str
    args: Sequence[str] = ()
    env: Sequence[Part] = ()
    #: Rows of a volume and its mount path; only an emptyDir is writable.
    volumes: Sequence[tuple[Part, str]] = ()
    #: Texts whose change restarts the pod.
    configuration: Sequence[str] = ()
    #: Whether it calls the API server, with the token of a ServiceAccount of its name.
    calls_api: bool = False


def namespace_objects(platform: PlatformModel) -> list[Obj]:
    """Return the namespace, and a policy that allows only its own pods to connect; port-forward comes from the node."""
    namespace = obj_of(scheme.NAMESPACE, platform.name, NAMESPACE)
    namespace["metadata"]["labels"] = {**labels_of(platform.name), **_RESTRICTED}
    own_pods: Part = {"from": [{"podSelector": {}}]}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [own_pods]}
    return [namespace, obj_of(scheme.NETWORK_POLICY, platform.name, "from-own-namespace", NAMESPACE, spec=spec)]


def config_map(platform: PlatformModel, name: str, data: Mapping[str, str]) -> Obj:
    """Return a ConfigMap of files."""
    return obj_of(scheme.CONFIG_MAP, platform.name, name, NAMESPACE, data=dict(data))


def service(platform: PlatformModel, server: Server) -> Obj:
    """Return the Service of a server, on the same port."""
    port = {"name": "http", "port": server.port, "targetPort": "http", "protocol": "TCP"}
    spec = {"selector": {NAME_LABEL: server.name}, "ports": [port]}
    return obj_of(scheme.SERVICE, platform.name, server.name, NAMESPACE, spec=spec)


def account(platform: PlatformModel, name: str) -> Obj:
    """Return a ServiceAccount."""
    return obj_of(scheme.SERVICE_ACCOUNT, platform.name, name, NAMESPACE)


def subjects_of(name: str) -> list[Mapping[str, str]]:
    """Return the subject of a binding: a ServiceAccount of the stack."""
    return [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def role_ref(kind: str, name: str) -> Mapping[str, str]:
    """Return the roleRef of a binding."""
    return {"apiGroup": _RIGHTS, "kind": kind, "name": name}


def deployment(platform: PlatformModel, server: Server) -> Obj:
    """Return a Deployment of one pod, recreated on updates, since two pods must not share its data."""
    labels = {**labels_of(platform.name), NAME_LABEL: server.name}
    metadata: dict[str, Any] = {"labels": labels}
    if server.configuration:
        metadata["annotations"] = {_DIGEST: sha256("\0".join(server.configuration).encode()).hexdigest()}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": {NAME_LABEL: server.name}},
        "template": {"metadata": metadata, "spec": _pod(server)},
    }
    return obj_of(scheme.DEPLOYMENT, platform.name, server.name, NAMESPACE, spec=spec)


def _pod(server: Server) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": server.calls_api,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": server.user,
            "runAsGroup": server.user,
            "fsGroup": server.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(server)],
    }
    if server.calls_api:
        spec["serviceAccountName"] = server.name
    if server.volumes:
        spec["volumes"] = [dict(volume) for volume, _ in server.volumes]
    return spec


def _container(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": server.name,
        "image": server.image,
        "ports": [{"name": "http", "containerPort": server.port}],
        "readinessProbe": {"httpGet": {"path": server.ready, "port": "http"}, "periodSeconds": 10},
        "resources": {"requests": dict(server.requests), "limits": {"memory": server.memory_limit}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if server.args:
        found["args"] = list(server.args)
    if server.env:
        found["env"] = [dict(each) for each in server.env]
    if server.volumes:
        found["volumeMounts"] = [_mount(volume, path) for volume, path in server.volumes]
    return found


def _mount(volume: Part, path: str) -> dict[str, Any]:
    is_written = "emptyDir" in volume
    return {"name": volume["name"], "mountPath": path, **({} if is_written else {"readOnly": True})}
