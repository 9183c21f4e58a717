"""Validation of Pod fields that are written to files or used as paths, as strict as in Kubernetes."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.validation import validate

NO_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
HEADER = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)
PORT = "must be between 1 and 65535, inclusive"
ID = "must be between 0 and 2147483647, inclusive"


def problems(spec: dict[str, Any] | None = None, /, **container: Any) -> list[str]:
    """Return the faults of a Pod without their remedies, with paths relative to its container."""
    main = {"name": "c", "image": "i", **container}
    pod = make.metadata("p", "team")
    obj = {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": {"containers": [main], **(spec or {})}}
    result = validate(obj)
    return [f"{fault.path}: {fault.problem}".replace("spec.containers[0].", "") for fault in result]


def alias(ip: str, *hostnames: str) -> dict[str, Any]:
    return {"hostAliases": [{"ip": ip, "hostnames": [*hostnames]}]}


def dns(**config: Any) -> dict[str, Any]:
    return {"dnsConfig": config}


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", **source}]}


@pytest.mark.parametrize(
    ("spec", "places"),
    [
        (alias("10.0.0.1\n6.6.6.6 bank.example"), ["spec.hostAliases[0].ip"]),
        (alias(""), ["spec.hostAliases[0].ip"]),
        (alias("fe80::1%eth0\n1.2.3.4 x"), ["spec.hostAliases[0].ip"]),
        (alias("1.2.3.04"), ["spec.hostAliases[0].ip"]),
        (alias("10.0.0.1", "good.example", "a\n6.6.6.6 b"), ["spec.hostAliases[0].hostnames[1]"]),
        (alias("10.0.0.1", "two words"), ["spec.hostAliases[0].hostnames[0]"]),
        (dns(nameservers=["8.8.8.8\noptions inet6"]), ["spec.dnsConfig.nameservers[0]"]),
        (dns(nameservers=["1.1.1.1"] * 4), ["spec.dnsConfig.nameservers"]),
        (dns(searches=["a.example\nnameserver 6.6.6.6"]), ["spec.dnsConfig.searches[0]"]),
        (dns(searches=["a.example"] * 33), ["spec.dnsConfig.searches"]),
        (dns(searches=["a" * 63 + ".example"] * 32), ["spec.dnsConfig.searches"]),
        (dns(options=[{"name": ""}]), ["spec.dnsConfig.options[0]"]),
        (dns(options=[{"name": "ndots", "value": "2\nnameserver 6.6.6.6"}]), ["spec.dnsConfig.options[0].value"]),
        ({"dnsPolicy": "None"}, ["spec.dnsConfig"]),
        ({"dnsPolicy": "None", "dnsConfig": {}}, ["spec.dnsConfig.nameservers"]),
        ({"hostname": "a\nb"}, ["spec.hostname"]),
        ({"subdomain": "a\nb"}, ["spec.subdomain"]),
        ({"runtimeClassName": "../x"}, ["spec.runtimeClassName"]),
        (volume(hostPath={"path": "/srv/../etc"}), ["spec.volumes[0].hostPath.path"]),
        (volume(hostPath={"path": "/srv", "type": "Any"}), ["spec.volumes[0].hostPath.type"]),
        (volume(hostPath={"path": ""}), ["spec.volumes[0].hostPath.path"]),
        (volume(secret={}), ["spec.volumes[0].secret.secretName"]),
        (volume(configMap={"name": "m", "defaultMode": 512}), ["spec.volumes[0].configMap.defaultMode"]),
        (
            volume(secret={"secretName": "s", "items": [{"key": "k", "path": "../k"}, {"key": "k", "path": "/k"}]}),
            ["spec.volumes[0].secret.items[0].path", "spec.volumes[0].secret.items[1].path"],
        ),
        (
            volume(configMap={"name": "m", "items": [{"key": "", "path": "..k", "mode": -1}]}),
            [f"spec.volumes[0].configMap.items[0].{field}" for field in ("key", "path", "mode")],
        ),
        (volume(downwardAPI={"items": [{"path": "a/../b"}]}), ["spec.volumes[0].downwardAPI.path"]),
        (
            volume(projected={"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "../k"}]}}]}),
            ["spec.volumes[0].projected.sources[0].secret.items[0].path"],
        ),
        (
            volume(projected={"sources": [{"serviceAccountToken": {"path": "../t", "expirationSeconds": 5}}]}),
            [
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds",
                "spec.volumes[0].projected.path",
            ],
        ),
        (
            {"securityContext": {"runAsUser": -1, "fsGroup": 2**31}},
            [f"spec.securityContext.{f}" for f in ("runAsUser", "fsGroup")],
        ),
        ({"securityContext": {"supplementalGroups": [1, -1]}}, ["spec.securityContext.supplementalGroups[1]"]),
        (
            {"securityContext": {"sysctls": [{"name": "../../etc", "value": "1"}]}},
            ["spec.securityContext.sysctls[0].name"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "../../x"}}},
            ["spec.securityContext.seccompProfile.localhostProfile"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
            ["spec.securityContext.seccompProfile.localhostProfile"],
        ),
        ({"securityContext": {"seccompProfile": {"type": "Other"}}}, ["spec.securityContext.seccompProfile.type"]),
        ({"securityContext": {"appArmorProfile": {}}}, ["spec.securityContext.appArmorProfile.type"]),
    ],
)
def test_invalid_pod_fields_are_rejected(spec: dict[str, Any], places: list[str]) -> None:
    assert [problem.partition(": ")[0] for problem in problems(spec)] == places


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ({"livenessProbe": {}}, "livenessProbe: Required value: must specify a handler type"),
        ({"livenessProbe": {"exec": {}}}, "livenessProbe.exec.command: Required value"),
        ({"readinessProbe": {"httpGet": {"port": 0}}}, f"readinessProbe.httpGet.port: Invalid value: 0: {PORT}"),
        (
            {"startupProbe": {"httpGet": {"port": 1, "httpHeaders": [{"name": "a\nb", "value": "x"}]}}},
            f'startupProbe.httpGet.httpHeaders: Invalid value: "a\\nb": {HEADER}',
        ),
        (
            {"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -1}},
            "livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            {"lifecycle": {"preStop": {"exec": {"command": ["x"]}, "httpGet": {"port": 1}}}},
            "lifecycle.preStop.httpGet: Forbidden: may not specify more than 1 handler type",
        ),
        ({"ports": [{"containerPort": 1, "hostIP": "x"}]}, f'ports[0].hostIP: Invalid value: "x": {NO_IP}'),
        (
            {"ports": [{"containerPort": 1, "name": "a-very-long-name"}]},
            'ports[0].name: Invalid value: "a-very-long-name": must be no more than 15 characters',
        ),
        ({"securityContext": {"runAsUser": -1}}, f"securityContext.runAsUser: Invalid value: -1: {ID}"),
        (
            {"securityContext": {"procMount": "Unmasked"}},
            'securityContext.procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`',
        ),
        ({"envFrom": [{}]}, 'envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`'),
        ({"envFrom": [{"secretRef": {"name": ""}}]}, "envFrom[0].secretRef.name: Required value"),
    ],
)
def test_invalid_container_fields_are_rejected(container: dict[str, Any], problem: str) -> None:
    assert problems(**container) == [problem]


def test_sub_path_outside_volume_is_rejected() -> None:
    mounts = [{"name": "v", "mountPath": "/a", "subPath": "../x"}, {"name": "v", "mountPath": "/b", "subPath": "/x"}]
    assert problems(volume(emptyDir={}), volumeMounts=mounts) == [
        "volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'",
        'volumeMounts.subPath: Invalid value: "/x": must be a relative path',
    ]


def test_valid_pod_fields_are_accepted() -> None:
    spec = {
        **alias("2001:db8::1", "a.example", "b"),
        **volume(projected={"sources": [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "m"}}]}),
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["10.0.0.1"],
            "searches": ["a.example.", "_tcp.b", "."],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
        },
        "securityContext": {
            "runAsUser": 0,
            "sysctls": [{"name": "net/ipv4/tcp_rmem", "value": "1 2 3"}],
            "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/audit.json"},
        },
    }
    probe = {"httpGet": {"port": "http", "path": "/", "scheme": "HTTPS"}, "periodSeconds": 0}
    assert problems(spec, readinessProbe=probe, lifecycle={"preStop": {"sleep": {"seconds": 1}}}) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"clusterIP": "10.0.0.1\n6.6.6.6 bank.example"},
        {"externalIPs": ["10.0.0.1\n6.6.6.6 bank.example"]},
        {"externalIPs": ["None"]},
        {"externalIPs": [""]},
    ],
)
def test_invalid_service_address_is_rejected(fields: Mapping[str, Any]) -> None:
    spec = {"ports": [{"port": 1}], **fields}
    result = validate({"apiVersion": "v1", "kind": "Service", "metadata": make.metadata("s", "team"), "spec": spec})
    assert [fault.problem.endswith(NO_IP) for fault in result] == [True]
