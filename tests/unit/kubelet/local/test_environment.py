"""The variables of a container."""

from typing import Any

import pytest

from batchyard.apiserver.api_services import kubernetes_service_objects
from batchyard.kubelet.local.environment import command_line, environment
from batchyard.kubelet.local.errors import ContainerError
from unit.kubelet.local.local_make import NOTHING, FixedObjects, config_map, container, node, pod, secret, service

KUBERNETES = service("kubernetes", "10.0.0.1", {"name": "https", "port": 443}, namespace="default")


def variables(*env: Any, reader: FixedObjects = NOTHING, **fields: Any) -> dict[str, str]:
    """The variables of the only container, given these entries of `env`."""
    spec = {field: fields.pop(field) for field in ("enableServiceLinks", "labels", "annotations") if field in fields}
    only = container(env=list(env), **fields)
    return environment(pod(only, **spec), only, ["10.77.0.5", "fd00::5"], reader)


def container_error(*env: Any, reader: FixedObjects = NOTHING, **fields: Any) -> tuple[str, str]:
    """Reason and message of the error."""
    with pytest.raises(ContainerError) as caught:
        variables(*env, reader=reader, **fields)
    return caught.value.reason, caught.value.message


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def from_key(source: str, name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {source: {"name": name, "key": key, **more}}}


def test_value_expands_variables_defined_before_it() -> None:
    env = [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}, {"name": "C", "value": "$(A)2"}]
    assert variables(*env) == {"B": "$(A)", "A": "1", "C": "12"}


def test_value_expands_service_and_config_map_variables() -> None:
    objects = FixedObjects(service("db", "10.0.0.7", {"port": 5432}), config_map("all", USER="me"))
    env = {"name": "URL", "value": "$(USER)@$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)"}
    result = variables(env, reader=objects, envFrom=[{"configMapRef": {"name": "all"}}])
    assert result["URL"] == "me@10.0.0.7:5432"


def test_missing_value_is_empty() -> None:
    assert variables({"name": "X"}, {"name": "Y", "value": ""}) == {"X": "", "Y": ""}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "pod"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "uid-pod"),
        ("metadata.labels['app']", "web"),
        ("metadata.annotations['a.b/c']", "noted"),
        ("metadata.labels['none']", ""),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", ""),
        ("status.podIP", "10.77.0.5"),
        ("status.podIPs", "10.77.0.5,fd00::5"),
        ("status.hostIP", "192.168.0.1"),
        ("status.hostIPs", "192.168.0.1,fd00::1"),
    ],
)
def test_variable_can_be_field_of_pod(path: str, value: str) -> None:
    addresses = [("ExternalIP", "9.9.9.9"), ("InternalIP", "192.168.0.1"), ("InternalIP", "fd00::1")]
    objects = FixedObjects(node(*addresses))
    result = variables(field(path), reader=objects, labels={"app": "web"}, annotations={"a.b/c": "noted"})
    assert result == {"X": value}


def test_pod_without_own_network_has_addresses_of_node() -> None:
    only = container(env=[field("status.podIP"), {**field("status.podIPs"), "name": "ALL"}])
    objects = FixedObjects(node(("InternalIP", "192.168.0.1"), ("InternalIP", "fd00::1")))
    for on_network in (pod(only, hostNetwork=True), pod(only)):
        assert environment(on_network, only, [], objects) == {"X": "192.168.0.1", "ALL": "192.168.0.1,fd00::1"}
    assert environment(pod(only), only, [], NOTHING) == {"X": "", "ALL": ""}


def test_invalid_field_path_is_rejected() -> None:
    assert container_error(field("spec.containers")) == (
        "CreateContainerConfigError",
        "unsupported fieldPath: spec.containers",
    )
    reported = "fieldPath \"spec.nodeName['x']\" does not support subscript"
    assert container_error(field("spec.nodeName['x']"))[1] == reported
    assert container_error(field("metadata.labels['_']"))[1].startswith(
        "invalid key subscript in metadata.labels['_']: "
    )
    assert container_error(field("status.hostIP"))[1] == "host IP unknown; known addresses: []"


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", None, "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "954"),
        ("requests.cpu", "1m", "250"),
        ("requests.memory", None, "0"),
        ("limits.ephemeral-storage", "1Gi", "10"),
        ("limits.hugepages-2Mi", "0", "0"),
    ],
)
def test_resource_field_is_divided_and_rounded_up(resource: str, divisor: str | None, value: str) -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1G"}, "requests": {"cpu": "250m"}}
    objects = FixedObjects(node(**{"cpu": "8", "memory": "32Gi", "ephemeral-storage": "10Gi"}))
    source = {"resource": resource, **({"divisor": divisor} if divisor else {})}
    env = {"name": "X", "valueFrom": {"resourceFieldRef": source}}
    assert variables(env, reader=objects, resources=resources) == {"X": value}


def test_missing_limit_defaults_to_pod_limit_or_node_allocatable() -> None:
    env = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    only = container(env=[env])
    objects = FixedObjects(node(cpu="8"))
    assert environment(pod(only), only, [], objects) == {"X": "8"}
    limited = pod(only, resources={"limits": {"cpu": "3"}})
    assert environment(limited, only, [], objects) == {"X": "3"}


def test_resource_field_of_unsupported_resource_is_rejected() -> None:
    env = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.nvidia.com/gpu"}}}
    assert container_error(env)[1] == "unsupported container resource : limits.nvidia.com/gpu"


def test_resource_field_can_name_another_container() -> None:
    env = {"name": "X", "valueFrom": {"resourceFieldRef": {"containerName": "side", "resource": "requests.cpu"}}}
    only, side = container(env=[env]), container("side", resources={"requests": {"cpu": "5"}})
    assert environment(pod(only, initContainers=[side]), only, [], NOTHING) == {"X": "5"}
    assert container_error(env) == ("CreateContainerConfigError", "container side not found")


def test_variables_are_read_from_config_maps_and_secrets() -> None:
    objects = FixedObjects(config_map("cm", key="text"), secret("s", key=b"hidden \xff"))
    assert variables(from_key("configMapKeyRef", "cm", "key"), reader=objects) == {"X": "text"}
    assert variables(from_key("secretKeyRef", "s", "key"), reader=objects) == {"X": "hidden \udcff"}


def test_missing_reference_is_reported_with_kubelet_message() -> None:
    objects = FixedObjects(config_map("cm", {"binary": b"1"}), secret("s"))
    reason = "CreateContainerConfigError"
    assert container_error(from_key("configMapKeyRef", "x", "k")) == (reason, 'configmap "x" not found')
    assert container_error(from_key("secretKeyRef", "x", "k")) == (reason, 'secret "x" not found')
    reported = container_error(from_key("configMapKeyRef", "cm", "binary"), reader=objects)[1]
    assert reported == "couldn't find key binary in ConfigMap team/cm"
    assert (
        container_error(from_key("secretKeyRef", "s", "k"), reader=objects)[1] == "couldn't find key k in Secret team/s"
    )
    assert container_error(envFrom=[{"secretRef": {"name": "x"}}]) == (reason, 'secret "x" not found')


def test_missing_optional_reference_keeps_earlier_value() -> None:
    objects = FixedObjects(config_map("cm", X="before"))
    source = [{"configMapRef": {"name": "cm"}}, {"secretRef": {"name": "no", "optional": True}}]
    env = [from_key("configMapKeyRef", "cm", "no", optional=True), from_key("secretKeyRef", "no", "k", optional=True)]
    assert variables(*env, reader=objects, envFrom=source) == {"X": "before"}


def test_env_from_is_applied_in_order_with_prefix_and_before_env() -> None:
    entries: dict[str, Any] = {"a.b": "1", "same": "1"}
    objects = FixedObjects(config_map("one", **entries), secret("two", same=b"2"))
    source = [{"configMapRef": {"name": "one"}, "prefix": "P_"}, {"configMapRef": {"name": "one"}}]
    result = variables(
        {"name": "a.b", "value": "own"}, reader=objects, envFrom=[*source, {"secretRef": {"name": "two"}}]
    )
    assert result == {"P_a.b": "1", "P_same": "1", "a.b": "own", "same": "2"}


def test_services_are_set_as_variables() -> None:
    ports = [{"name": "web-ui", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    assert variables(reader=FixedObjects(service("my-svc", "fd00::7", *ports))) == {
        "MY_SVC_SERVICE_HOST": "fd00::7",
        "MY_SVC_SERVICE_PORT": "80",
        "MY_SVC_SERVICE_PORT_WEB_UI": "80",
        "MY_SVC_SERVICE_PORT_DNS": "53",
        "MY_SVC_PORT": "tcp://[fd00::7]:80",
        "MY_SVC_PORT_80_TCP": "tcp://[fd00::7]:80",
        "MY_SVC_PORT_80_TCP_PROTO": "tcp",
        "MY_SVC_PORT_80_TCP_PORT": "80",
        "MY_SVC_PORT_80_TCP_ADDR": "fd00::7",
        "MY_SVC_PORT_53_UDP": "udp://[fd00::7]:53",
        "MY_SVC_PORT_53_UDP_PROTO": "udp",
        "MY_SVC_PORT_53_UDP_PORT": "53",
        "MY_SVC_PORT_53_UDP_ADDR": "fd00::7",
    }


def test_service_without_ports_has_host_variable() -> None:
    assert variables(reader=FixedObjects(service("a", "10.0.0.9"))) == {"A_SERVICE_HOST": "10.0.0.9"}


def test_headless_services_and_other_namespaces_set_no_variables() -> None:
    other = service("b", "10.0.0.8", {"port": 1}, namespace="other")
    assert variables(reader=FixedObjects(service("a", "None", {"port": 1}), other)) == {}


def test_kubernetes_service_is_set_without_service_links() -> None:
    objects = FixedObjects(KUBERNETES, service("a", "10.0.0.9", {"port": 1}))
    assert "A_SERVICE_HOST" in variables(reader=objects)
    result = variables(reader=objects, enableServiceLinks=False)
    assert "A_SERVICE_HOST" not in result
    assert (result["KUBERNETES_SERVICE_HOST"], result["KUBERNETES_SERVICE_PORT_HTTPS"]) == ("10.0.0.1", "443")


def test_pod_on_host_network_uses_node_address_of_api_server() -> None:
    service, endpoints, _ = kubernetes_service_objects("127.0.0.1", 6443, is_https=True, cluster_ip="10.77.0.1")
    only, objects = container(), FixedObjects(service, endpoints)
    names = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    for addresses, result in ((["10.77.0.5"], ("10.77.0.1", "443")), ([], ("127.0.0.1", "6443"))):
        reported = environment(pod(only), only, addresses, objects)
        assert tuple(reported[name] for name in names) == result


def test_env_overrides_service_variables() -> None:
    env = {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"}
    assert variables(env, reader=FixedObjects(KUBERNETES))["KUBERNETES_SERVICE_HOST"] == "mine"


def test_env_from_without_source_is_ignored() -> None:
    assert variables(envFrom=[{"prefix": "P_"}]) == {}


def test_file_key_ref_is_rejected() -> None:
    source = {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}
    assert container_error({"name": "X", "valueFrom": source})[1].startswith(
        "fileKeyRef in env of container main is not supported here"
    )


def test_null_byte_in_value_is_rejected() -> None:
    objects = FixedObjects(secret("s", key=b"a\0b"))
    assert container_error(from_key("secretKeyRef", "s", "key"), reader=objects)[0] == "CreateContainerError"


def test_nested_variables_over_argument_limit_are_rejected() -> None:
    rows = [("V0", "x" * 1000), *((f"V{number}", f"$(V{number - 1})" * 10) for number in range(1, 9))]
    assert container_error(*({"name": name, "value": value} for name, value in rows)) == (
        "CreateContainerConfigError",
        "argument list too long",
    )
    first = [{"name": name, "value": value} for name, value in rows[:3]]
    assert len(variables(*first)["V2"]) == 100_000
    many = [{"name": f"M{number}", "value": "$(V2)"} for number in range(50)]
    assert container_error(*first, *many)[1] == "argument list too long"


def test_env_from_over_argument_limit_is_rejected() -> None:
    objects = FixedObjects(config_map("long", a="x" * 900_000))
    rows = [{"configMapRef": {"name": "long"}, "prefix": f"p{number}"} for number in range(3)]
    assert len(variables(reader=objects, envFrom=rows[:2])["p1a"]) == 900_000
    assert container_error(reader=objects, envFrom=rows)[1] == "argument list too long"


def test_command_over_argument_limit_is_rejected() -> None:
    with pytest.raises(ContainerError, match="argument list too long"):
        command_line({"args": ["$(A)"] * 50}, {"A": "x" * 100_000})
    with pytest.raises(ContainerError, match="argument list too long"):
        command_line({"args": ["$(A)" * 50]}, {"A": "x" * 100_000})


def test_command_and_args_expand_variables() -> None:
    only = container(command=["sh", "-c"], args=["echo $(A) $(B) $$(A)"])
    assert command_line(only, {"A": "1"}) == ["sh", "-c", "echo 1 $(B) $(A)"]
