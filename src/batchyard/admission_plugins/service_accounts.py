"""The ServiceAccount admission plugin: sets the ServiceAccount of a new Pod, and mounts a volume with its token.

Source: Kubernetes's plugin/pkg/admission/serviceaccount, with bound tokens in volumes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import FindObject, forbidden_prefix
from batchyard.api import scheme
from batchyard.api.errors import Forbidden, TemporarilyForbidden
from batchyard.api.meta import Key, Obj, annotation

#: The ServiceAccount that exists in every Namespace.
DEFAULT: Final = "default"
#: The name prefix of token volumes.
VOLUME_PREFIX: Final = "kube-api-access-"
#: The ConfigMap with the CA certificate of the API server, which exists in every Namespace.
ROOT_CERTIFICATE: Final = "kube-root-ca.crt"
CERTIFICATE_KEY: Final = "ca.crt"
_MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_ENFORCE_SECRETS_ANNOTATION: Final = "kubernetes.io/enforce-mountable-secrets"
_TRUE_TEXTS: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_CONTAINER_FIELDS: Final = (("initContainers", "init container"), ("containers", "container"))
#: The extra seven seconds distinguish these tokens from tokens that other clients request.
_TOKEN_SOURCE: Final = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
_CERTIFICATE_SOURCE: Final = {
    "configMap": {"name": ROOT_CERTIFICATE, "items": [{"key": CERTIFICATE_KEY, "path": CERTIFICATE_KEY}]}
}
_NAMESPACE_SOURCE: Final = {
    "downwardAPI": {
        "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
    }
}
_PROJECTED_VOLUME: Final = {"defaultMode": 420, "sources": [_TOKEN_SOURCE, _CERTIFICATE_SOURCE, _NAMESPACE_SOURCE]}


def default_service_account(namespace: str) -> Obj:
    """Return a new ServiceAccount `default` for a Namespace."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT, "namespace": namespace}}


def with_service_account(pod: Obj, find_object: FindObject, volume_name: str) -> Obj:
    """Return the Pod with its ServiceAccount, its image pull secrets, and a token volume unless automount is disabled.

    `volume_name` is the name of a new token volume. A mirror pod is returned unchanged. Raises TemporarilyForbidden if
    the ServiceAccount does not exist, and Forbidden if the Pod uses Secrets or tokens that it may not use.
    """
    if annotation(pod, _MIRROR_ANNOTATION) is not None:
        return _check_mirror_pod(pod)
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT
    service_account = find_object(Key(scheme.SERVICE_ACCOUNT, namespace, name))
    if service_account is None:
        message = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise TemporarilyForbidden(f"{forbidden_prefix(pod, prefers_name=False)}: {message}")
    new_spec = {**spec, "serviceAccountName": name, "serviceAccount": name}
    if _automounts_token(pod, service_account):
        new_spec |= _mount_token(spec, volume_name)
    if not spec.get("imagePullSecrets") and service_account.get("imagePullSecrets"):
        new_spec["imagePullSecrets"] = service_account["imagePullSecrets"]
    if annotation(service_account, _ENFORCE_SECRETS_ANNOTATION) in _TRUE_TEXTS:
        _check_mountable_secrets({**pod, "spec": new_spec}, service_account)
    return {**pod, "spec": new_spec}


def _automounts_token(pod: Obj, service_account: Obj) -> bool:
    pod_automount = pod["spec"].get("automountServiceAccountToken")
    return bool(service_account.get("automountServiceAccountToken", True) if pod_automount is None else pod_automount)


def _mount_token(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    volumes: Sequence[Mapping[str, Any]] = spec.get("volumes") or ()
    existing_volume = next((volume["name"] for volume in volumes if volume["name"].startswith(VOLUME_PREFIX)), None)
    volume_mount = {"name": existing_volume or name, "readOnly": True, "mountPath": _MOUNT_PATH}
    changed_fields: dict[str, Any] = {}
    for field, _ in _CONTAINER_FIELDS:
        containers = spec.get(field) or ()
        if any(map(_has_free_mount_path, containers)):
            changed_fields[field] = [_with_mount(container, volume_mount) for container in containers]
    if changed_fields and existing_volume is None:
        changed_fields["volumes"] = [*volumes, {"name": name, "projected": _PROJECTED_VOLUME}]
    return changed_fields


def _has_free_mount_path(container: Mapping[str, Any]) -> bool:
    return all(mount.get("mountPath") != _MOUNT_PATH for mount in container.get("volumeMounts") or ())


def _with_mount(container: Mapping[str, Any], volume_mount: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _has_free_mount_path(container):
        return container
    return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), volume_mount]}


def _check_mirror_pod(pod: Obj) -> Obj:
    spec = pod["spec"]
    volumes = spec.get("volumes") or ()
    volume_sources = [source for volume in volumes for source in (volume.get("projected") or {}).get("sources") or ()]
    message = ""
    if spec.get("serviceAccountName"):
        message = "a mirror pod may not reference service accounts"
    elif spec.get("imagePullSecrets") or any("secret" in volume for volume in volumes) or any(_secret_references(spec)):
        message = "a mirror pod may not reference secrets"
    elif any("serviceAccountToken" in source for source in volume_sources):
        message = "a mirror pod may not use ServiceAccountToken volume projections"
    if message:
        raise Forbidden(f"{forbidden_prefix(pod, prefers_name=False)}: {message}")
    return pod


def _secret_references(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    for field, container_type in _CONTAINER_FIELDS:
        for container in spec.get(field) or ():
            for variable in container.get("env") or ():
                key_reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
                if key_reference is not None:
                    yield container_type, container, variable["name"], key_reference.get("name", "")


def _check_mountable_secrets(pod: Obj, service_account: Obj) -> None:
    first_problem = next(_find_unreferenced_secrets(pod["spec"], service_account), None)
    if first_problem is not None:
        raise Forbidden(f"{forbidden_prefix(pod, prefers_name=False)}: {first_problem}")


def _find_unreferenced_secrets(spec: Mapping[str, Any], service_account: Obj) -> Iterator[str]:
    allowed_names = [secret.get("name") for secret in service_account.get("secrets") or ()]
    reason = f"because service account {service_account['metadata']['name']} does not reference that"
    for volume in spec.get("volumes") or ():
        secret = (volume.get("secret") or {}).get("secretName")
        if secret is not None and secret not in allowed_names:
            yield f'volume with secret.secretName="{secret}" is not allowed {reason} secret'
    for kind, container, variable, secret in _secret_references(spec):
        if secret not in allowed_names:
            description = f'{kind} {container["name"]} with envVar {variable} referencing secret.secretName="{secret}"'
            yield f"{description} is not allowed {reason} secret"
    pull_secret_names = [secret.get("name") for secret in service_account.get("imagePullSecrets") or ()]
    for i, secret in enumerate(spec.get("imagePullSecrets") or ()):
        if secret.get("name") not in pull_secret_names:
            yield f'imagePullSecrets[{i}].name="{secret.get("name")}" is not allowed {reason} imagePullSecret'
