"""Stored defaults of a minimal object of each Kubernetes kind, field by field."""

from typing import Any

import pytest
import yaml

from batchyard.api.manifests import decode
from batchyard.api.schema.scalars import default_pull_policy
from minimal_objects import MINIMAL_OBJECTS, RUN_ONCE, WHOLE


@pytest.mark.parametrize(("kind", "sent", "stored"), MINIMAL_OBJECTS)
def test_minimal_object_is_stored_with_defaults(kind: str, sent: str, stored: str) -> None:
    api_version, _, name = kind.rpartition(" ")
    head = {"apiVersion": api_version, "kind": name, "metadata": {"name": "a"}}
    decoded = decode({**head, **yaml.safe_load(sent)})
    assert decoded.obj is not None, decoded.faults
    reported = {field: value for field, value in decoded.obj.items() if field not in head}
    assert reported == yaml.safe_load(stored)
    assert decode(decoded.obj).obj == decoded.obj


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("{name: v}", "{name: v, emptyDir: {}}"),
        ("{name: v, configMap: {name: c}}", "{name: v, configMap: {name: c, defaultMode: 420}}"),
        ("{name: v, secret: {secretName: s}}", "{name: v, secret: {secretName: s, defaultMode: 420}}"),
        ("{name: v, hostPath: {path: /a}}", "{name: v, hostPath: {path: /a, type: ''}}"),
        (
            "{name: v, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}",
            (
                "{name: v, downwardAPI: {items: [{path: a, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}], "
                "defaultMode: 420}}"
            ),
        ),
        (
            "{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}",
            (
                "{name: v, projected: {sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}], "
                "defaultMode: 420}}"
            ),
        ),
        (
            (
                "{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], "
                "resources: {requests: {storage: 1Gi}}}}}}"
            ),
            (
                "{name: v, ephemeral: {volumeClaimTemplate: {metadata: {}, spec: {accessModes: [ReadWriteOnce], "
                "resources: {requests: {storage: 1Gi}}, volumeMode: Filesystem}}}}"
            ),
        ),
        ("{name: v, image: {reference: a}}", "{name: v, image: {reference: a, pullPolicy: Always}}"),
        (
            "{name: v, azureDisk: {diskName: a, diskURI: b}}",
            (
                "{name: v, azureDisk: {diskName: a, diskURI: b, cachingMode: ReadWrite, fsType: ext4, kind: Shared, "
                "readOnly: false}}"
            ),
        ),
        (
            "{name: v, iscsi: {targetPortal: a, iqn: b, lun: 0}}",
            "{name: v, iscsi: {targetPortal: a, iqn: b, lun: 0, iscsiInterface: default}}",
        ),
    ],
)
def test_volume_is_stored_with_defaults(sent: str, stored: str) -> None:
    template: dict[str, Any] = yaml.safe_load(RUN_ONCE)
    template["spec"]["volumes"] = [yaml.safe_load(sent)]
    decoded = decode({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template})
    assert decoded.obj is not None, decoded.faults
    assert decoded.obj["template"]["spec"]["volumes"] == [yaml.safe_load(stored)]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (
            "livenessProbe: {httpGet: {port: 80}}",
            (
                "livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, failureThreshold: 3, periodSeconds: 10, "
                "successThreshold: 1, timeoutSeconds: 1}"
            ),
        ),
        (
            "startupProbe: {grpc: {port: 80}, periodSeconds: 5}",
            (
                "startupProbe: {grpc: {port: 80, service: ''}, failureThreshold: 3, periodSeconds: 5, "
                "successThreshold: 1, timeoutSeconds: 1}"
            ),
        ),
        (
            "lifecycle: {preStop: {httpGet: {port: 80}}}",
            "lifecycle: {preStop: {httpGet: {port: 80, path: /, scheme: HTTP}}}",
        ),
        ("ports: [{containerPort: 80}]", "ports: [{containerPort: 80, protocol: TCP}]"),
        (
            "env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
            "env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]",
        ),
        (
            "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]",
            "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k, optional: false}}}]",
        ),
        ("resources: {limits: {cpu: 1}}", "resources: {limits: {cpu: '1'}}"),
    ],
)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_container_is_stored_with_defaults(field: str, sent: str, stored: str) -> None:
    template: dict[str, Any] = yaml.safe_load(RUN_ONCE)
    template["spec"].setdefault(field, [{"name": "i", "image": "busybox:1"}])[0].update(yaml.safe_load(sent))
    decoded = decode({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template})
    assert decoded.obj is not None, decoded.faults
    expected = {**yaml.safe_load(WHOLE), "name": template["spec"][field][0]["name"], **yaml.safe_load(stored)}
    assert decoded.obj["template"]["spec"][field] == [expected]


def test_service_account_is_stored_in_both_fields() -> None:
    for sent in ("serviceAccountName", "serviceAccount"):
        template: dict[str, Any] = yaml.safe_load(RUN_ONCE)
        template["spec"][sent] = "a"
        stored = decode(
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template}
        ).obj
        assert stored is not None
        reported = stored["template"]["spec"]
        assert (reported["serviceAccountName"], reported["serviceAccount"]) == ("a", "a")


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        *(("busybox", "Always"), ("busybox:latest", "Always"), ("busybox:1.36", "IfNotPresent")),
        *(("registry:5000/a/b", "Always"), ("registry:5000/a/b:1", "IfNotPresent")),
        (f"a@sha256:{'0' * 64}", "IfNotPresent"),
        (f"a:latest@sha256:{'0' * 64}", "Always"),
        *(("", "IfNotPresent"), ("No Image", "IfNotPresent"), ("Upper", "IfNotPresent"), ("a" * 5000, "IfNotPresent")),
    ],
)
def test_pull_policy_depends_on_image_tag(image: str, policy: str) -> None:
    assert default_pull_policy(image) == policy
