"""The Pod Security Standards: policies set by labels, and each check with its version history."""

from typing import Any

import pytest

from batchyard.api.pod_security import LevelVersion, PodSecurityPolicy, evaluate_pod, label_errors, namespace_policy

LATEST = None
#: A container security context that passes every check.
HARDENED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(name: str = "c", /, security: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "securityContext": {**HARDENED, **(security or {})}, **fields}


def spec(*containers: dict[str, Any], security: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"containers": [*(containers or (container(),))], "securityContext": security or {}, **fields}


def violations(level: str, minor: int | None, pod: dict[str, Any]) -> list[str]:
    result = evaluate_pod(LevelVersion(level, minor), {"name": "p"}, pod).violations
    return [str(violation) for violation in result]


PROBE = {"httpGet": {"port": 80, "host": "db.example"}}
HOOK = {"postStart": {"tcpSocket": {"port": 1, "host": "cache.example"}}}
CAPABILITIES = 'container "c" must not include "SYS_ADMIN" in securityContext.capabilities.add'
NOT_DROPPED = 'container "c" must set securityContext.capabilities.drop=["ALL"]'
SECCOMP = 'container "c" must not set securityContext.seccompProfile.type to "Unconfined"'
NO_SECCOMP = 'pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
SE_LINUX = "set forbidden securityContext.seLinuxOptions:"


@pytest.mark.parametrize(
    ("level", "minor", "pod", "violation"),
    [
        ("baseline", 0, spec(hostNetwork=True, hostIPC=True), "host namespaces (hostNetwork=true, hostIPC=true)"),
        ("baseline", LATEST, spec(hostPID=True), "host namespaces (hostPID=true)"),
        ("baseline", LATEST, spec(volumes=[{"name": "v", "hostPath": {}}]), 'hostPath volumes (volume "v")'),
        (
            "restricted",
            LATEST,
            spec(volumes=[{"name": "v", "hostPath": {}}, {"name": "w", "nfs": {}}, {"name": "x", "secret": {}}]),
            'restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "nfs")',
        ),
        (
            "baseline",
            LATEST,
            spec(container(ports=[{"containerPort": 1, "hostPort": 80}, {"containerPort": 2, "hostPort": 0}])),
            'hostPort (container "c" uses hostPort 80)',
        ),
        (
            "baseline",
            LATEST,
            spec(container("a", ports=[{"hostPort": 90}]), container("b", ports=[{"hostPort": 8080}])),
            'hostPort (containers "a", "b" use hostPorts 8080, 90)',
        ),
        (
            "baseline",
            34,
            spec(container(livenessProbe=PROBE, lifecycle=HOOK)),
            'probe or lifecycle host (container "c" uses probe or lifecycle hosts "cache.example", "db.example")',
        ),
        (
            "baseline",
            LATEST,
            spec(container(security={"privileged": True})),
            'privileged (container "c" must not set securityContext.privileged=true)',
        ),
        (
            "baseline",
            LATEST,
            spec(initContainers=[container("i", {"privileged": True})]),
            'privileged (container "i" must not set securityContext.privileged=true)',
        ),
        (
            "baseline",
            34,
            spec(container(security={"procMount": "Unmasked"}), hostUsers=False),
            'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
        ),
        (
            "restricted",
            35,
            spec(container(security={"procMount": "Unmasked"}), hostUsers=False),
            'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
        ),
        (
            "baseline",
            30,
            spec(container(security={"seLinuxOptions": {"type": "container_engine_t"}})),
            f'seLinuxOptions (container "c" {SE_LINUX} type "container_engine_t")',
        ),
        (
            "baseline",
            LATEST,
            spec(container(security={"seLinuxOptions": {"role": "r"}}), security={"seLinuxOptions": {"user": "u"}}),
            f'seLinuxOptions (pod and container "c" {SE_LINUX} user may not be set; role may not be set)',
        ),
        (
            "baseline",
            LATEST,
            spec(container(security={"seccompProfile": {"type": "Unconfined"}})),
            f"seccompProfile ({SECCOMP})",
        ),
        (
            "baseline",
            28,
            spec(security={"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "net.ipv4.ip_local_reserved_ports"}]}),
            "forbidden sysctls (net.ipv4.tcp_rmem)",
        ),
        (
            "baseline",
            LATEST,
            spec(security={"windowsOptions": {"hostProcess": True}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            "baseline",
            LATEST,
            spec(container(security={"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}})),
            f"non-default capabilities ({CAPABILITIES})",
        ),
        (
            "restricted",
            22,
            spec(container(security={"capabilities": {"add": ["SYS_ADMIN", "NET_BIND_SERVICE"]}})),
            f"unrestricted capabilities ({NOT_DROPPED}; {CAPABILITIES})",
        ),
        (
            "baseline",
            LATEST,
            spec(container(security={"appArmorProfile": {"type": "Unconfined"}})),
            'forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")',
        ),
        (
            "restricted",
            8,
            spec(container(security={"allowPrivilegeEscalation": True})),
            'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)',
        ),
        (
            "restricted",
            24,
            spec(container(security={"allowPrivilegeEscalation": True}), os={"name": "windows"}),
            'allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)',
        ),
        (
            "restricted",
            34,
            spec(container(security={"runAsNonRoot": None}), hostUsers=False),
            'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)',
        ),
        (
            "restricted",
            LATEST,
            spec(container(security={"runAsNonRoot": False}), security={"runAsNonRoot": False}),
            'runAsNonRoot != true (pod and container "c" must not set securityContext.runAsNonRoot=false)',
        ),
        ("restricted", 23, spec(security={"runAsUser": 0}), "runAsUser=0 (pod must not set runAsUser=0)"),
        ("restricted", 19, spec(container(security={"seccompProfile": None})), f"seccompProfile ({NO_SECCOMP})"),
    ],
)
def test_pod_violates_check(level: str, minor: int | None, pod: dict[str, Any], violation: str) -> None:
    assert violations(level, minor, pod) == [violation]


@pytest.mark.parametrize(
    ("level", "minor", "pod"),
    [
        ("privileged", LATEST, spec(container(security={"privileged": True}), hostNetwork=True)),
        ("baseline", 33, spec(container(livenessProbe=PROBE))),
        ("baseline", 35, spec(container(security={"procMount": "Unmasked"}), hostUsers=False)),
        ("baseline", 31, spec(container(security={"seLinuxOptions": {"type": "container_engine_t"}}))),
        ("baseline", 18, spec(container(security={"seccompProfile": {"type": "Unconfined"}}))),
        ("baseline", 27, spec(security={"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports"}]})),
        ("baseline", 29, spec(security={"sysctls": [{"name": "net.ipv4.tcp_keepalive_time"}]})),
        ("baseline", 32, spec(security={"sysctls": [{"name": "net.ipv4.tcp_rmem"}]})),
        ("baseline", LATEST, spec({"name": "c", "image": "i"})),
        ("restricted", 7, spec(container(security={"allowPrivilegeEscalation": True}))),
        ("restricted", 21, spec(container(security={"capabilities": {"add": ["CHOWN"]}}))),
        ("restricted", 25, spec(container(security={"capabilities": {}}), os={"name": "windows"})),
        ("restricted", 22, spec(security={"runAsUser": 0})),
        ("restricted", 35, spec(security={"runAsUser": 0, "runAsNonRoot": False}, hostUsers=False)),
        ("restricted", 18, spec(container(security={"seccompProfile": None}))),
        ("restricted", LATEST, spec(container(security={"runAsNonRoot": None}), security={"runAsNonRoot": True})),
        ("restricted", LATEST, spec(volumes=[{"name": "v", "projected": {}}, {"name": "none"}])),
        ("restricted", LATEST, spec()),
        ("restricted", 9_999, spec()),
    ],
)
def test_pod_passes_all_checks(level: str, minor: int | None, pod: dict[str, Any]) -> None:
    assert violations(level, minor, pod) == []


def test_annotations_set_profiles_in_older_versions() -> None:
    name = "seccomp.security.alpha.kubernetes.io/pod"
    seccomp = evaluate_pod(LevelVersion("baseline", 18), {"annotations": {name: "unconfined"}}, spec())
    assert [str(result) for result in seccomp.violations] == [
        f'seccompProfile (forbidden annotation {name}="unconfined")'
    ]
    assert not evaluate_pod(LevelVersion("baseline", 19), {"annotations": {name: "unconfined"}}, spec()).violations
    name = "container.apparmor.security.beta.kubernetes.io/c"
    armor = evaluate_pod(LevelVersion("baseline"), {"annotations": {name: "unconfined"}}, spec())
    assert [str(result) for result in armor.violations] == [
        f'forbidden AppArmor profile (annotation must not set AppArmor profile type to "{name}="unconfined"")'
    ]
    assert not evaluate_pod(LevelVersion("baseline"), {"annotations": {name: "localhost/x"}}, spec()).violations


def test_violations_are_reported_in_order_of_checks() -> None:
    result = evaluate_pod(LevelVersion("restricted"), {}, {"containers": [{"name": "c"}], "hostPID": True})
    assert result.reasons == (
        "host namespaces, allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, "
        "seccompProfile"
    )
    assert str(result).startswith('PodSecurity "restricted:latest": host namespaces (hostPID=true), allow')


def labels(**modes: str) -> dict[str, str]:
    return {f"pod-security.kubernetes.io/{mode.replace('_', '-')}": value for mode, value in modes.items()}


PRIVILEGED = LevelVersion()


@pytest.mark.parametrize(
    ("set_labels", "policy"),
    [
        ({}, PodSecurityPolicy()),
        (labels(enforce="baseline"), PodSecurityPolicy(LevelVersion("baseline"), PRIVILEGED, LevelVersion("baseline"))),
        (
            labels(enforce="restricted", enforce_version="v1.25"),
            PodSecurityPolicy(LevelVersion("restricted", 25), PRIVILEGED, LevelVersion("restricted", 25)),
        ),
        (
            labels(enforce="restricted", enforce_version="v1.25", warn_version="v1.30"),
            PodSecurityPolicy(LevelVersion("restricted", 25), PRIVILEGED, LevelVersion("restricted", 30)),
        ),
        (labels(enforce="restricted", warn="privileged"), PodSecurityPolicy(LevelVersion("restricted"))),
        (labels(audit="baseline", audit_version="latest"), PodSecurityPolicy(audit=LevelVersion("baseline"))),
        (labels(enforce="nope"), PodSecurityPolicy(LevelVersion("restricted"))),
        (labels(audit="nope", warn="nope"), PodSecurityPolicy()),
        (labels(warn="baseline", warn_version="v2.0"), PodSecurityPolicy(warn=LevelVersion("baseline"))),
    ],
)
def test_namespace_labels_set_policy(set_labels: dict[str, str], policy: PodSecurityPolicy) -> None:
    assert namespace_policy(set_labels) == policy


def test_invalid_policy_labels_are_rejected() -> None:
    place = "metadata.labels[pod-security.kubernetes.io/"
    levels = "must be one of privileged, baseline, restricted"
    versions = 'must be "latest" or "v1.x"'
    wrong = labels(enforce="x", enforce_version="1.2", audit_version="v1.01", warn="", warn_version="v1." + "9" * 19)
    assert [str(fault) for fault in label_errors(wrong)] == [
        f'{place}enforce]: Invalid value: "x": {levels}',
        f'{place}enforce-version]: Invalid value: "1.2": {versions}',
        f'{place}audit-version]: Invalid value: "v1.01": {versions}',
        f'{place}warn]: Invalid value: "": {levels}',
        f'{place}warn-version]: Invalid value: "v1.{"9" * 19}": {versions}',
    ]
    assert not label_errors(labels(enforce="restricted", enforce_version="v1.0", warn_version="latest"))
