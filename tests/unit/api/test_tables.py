"""Tables, as kubectl prints them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.api import printing, scheme
from batchyard.api.times import format_time
from batchyard.base.instant import HOUR, MINUTE, SECOND

pytestmark = pytest.mark.slow

CRDS = Path(__file__).parents[4] / "shared" / "crds"
NOW = 1_767_225_600 * SECOND

CRD_KINDS = (
    scheme.CLUSTER_QUEUE,
    scheme.LOCAL_QUEUE,
    scheme.WORKLOAD,
    scheme.COHORT,
    scheme.RESOURCE_FLAVOR,
    scheme.WORKLOAD_PRIORITY_CLASS,
    scheme.ADMISSION_CHECK,
    scheme.TOPOLOGY,
    scheme.MULTI_KUEUE_CLUSTER,
    scheme.MULTI_KUEUE_CONFIG,
    scheme.PROVISIONING_REQUEST_CONFIG,
    scheme.JOB_SET,
)


def make(kind: str, name: str = "a", *, age: int = 0, **fields: Any) -> dict[str, Any]:
    """Return an object of the given kind and age."""
    metadata = {"name": name, "creationTimestamp": format_time(NOW - age), **fields.pop("metadata", {})}
    kind, _, group = kind.partition(".")
    return {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": metadata, **fields}


def cells(obj: dict[str, Any], *, wide: bool = False) -> dict[str, str]:
    """The cells of an object by column."""
    names = [column.name for column in printing.columns(scheme_kind(obj), wide=wide)]
    return dict(zip(names, printing.row(obj, now=NOW, wide=wide), strict=True))


def scheme_kind(obj: dict[str, Any]) -> str:
    group = obj["apiVersion"].rpartition("/")[0]
    return f"{obj['kind']}.{group}" if group else str(obj["kind"])


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return make(scheme.JOB, spec=spec, status=status or {})


def service(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return make(scheme.SERVICE, spec=spec, status=status or {})


def true(*types: str) -> dict[str, Any]:
    return {"conditions": [{"type": type_, "status": "True"} for type_ in types]}


@pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs of upstream are not beside this repository")
@pytest.mark.parametrize("kind", CRD_KINDS)
def test_crd_columns_equal_declared_printer_columns(kind: str) -> None:
    crd = yaml.safe_load(next(CRDS.glob(f"*_{scheme.kind_info(kind).plural}.yaml")).read_text("utf-8"))
    for version in crd["spec"]["versions"]:
        declared = [
            printing.Column(column["name"], column.get("priority", 0), column["type"], column.get("format", ""))
            for column in version.get("additionalPrinterColumns", [{"name": "Age", "type": "date"}])
        ]
        assert printing.columns(kind, wide=True) == [printing.Column("Name"), *declared]


def test_priority_1_columns_are_printed_in_wide_output_only() -> None:
    queue = make(scheme.CLUSTER_QUEUE, spec={"queueingStrategy": "StrictFIFO"}, status={"pendingWorkloads": 0})
    assert cells(queue) == {"Name": "a", "Cohort": "", "Pending Workloads": "0"}
    assert cells(queue, wide=True) == {
        "Name": "a",
        "Cohort": "",
        "Strategy": "StrictFIFO",
        "Pending Workloads": "0",
        "Admitted Workloads": "",
    }


def test_cluster_queue_table_equals_guide_output() -> None:
    spec = {"cohortName": "team-a-b", "queueingStrategy": "StrictFIFO"}
    objs = [
        make(scheme.CLUSTER_QUEUE, name, spec=spec, status={"pendingWorkloads": 0, "admittedWorkloads": admitted})
        for name, admitted in [("cq-team-a-compact", 0), ("cq-team-a-lp", 4)]
    ]
    table = printing.table(scheme.CLUSTER_QUEUE, objs, now=NOW, wide=True, namespaces=False)
    assert printing.format_table(table).splitlines() == [
        "NAME                COHORT     STRATEGY     PENDING WORKLOADS   ADMITTED WORKLOADS",
        "cq-team-a-compact   team-a-b   StrictFIFO   0                   0",
        "cq-team-a-lp        team-a-b   StrictFIFO   0                   4",
    ]


def test_namespace_column_is_first_if_requested() -> None:
    queue = make(scheme.LOCAL_QUEUE, metadata={"namespace": "team-a"}, spec={"clusterQueue": "cq"})
    assert printing.table(scheme.LOCAL_QUEUE, [queue], now=NOW, wide=False, namespaces=True) == [
        ["NAMESPACE", "NAME", "CLUSTERQUEUE", "PENDING WORKLOADS", "ADMITTED WORKLOADS"],
        ["team-a", "a", "cq", "", ""],
    ]


def test_empty_table_has_header() -> None:
    table = printing.table(scheme.COHORT, [], now=NOW, wide=False, namespaces=False)
    assert printing.format_table(table) == "NAME   AGE\n"


def test_workload_row_shows_cluster_queue_of_reservation() -> None:
    status = {"admission": {"clusterQueue": "cq"}, "conditions": [{"type": "Admitted", "status": "False"}]}
    workload = make(scheme.WORKLOAD, age=3 * MINUTE + 20 * SECOND, spec={"queueName": "lq"}, status=status)
    assert cells(workload) == {
        "Name": "a",
        "Queue": "lq",
        "Reserved in": "cq",
        "Admitted": "False",
        "Finished": "",
        "Age": "3m20s",
    }


def test_jobset_row_prints_booleans_and_numbers() -> None:
    jobset = make(scheme.JOB_SET, spec={"suspend": False}, status={"restarts": 2, "terminalState": "Completed"})
    result = cells(jobset)
    assert (result["TerminalState"], result["Restarts"], result["Suspended"]) == ("Completed", "2", "false")
    assert result["Completed"] == ""


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ((), "Running"),
        (("Complete", "SuccessCriteriaMet"), "Complete"),
        (("FailureTarget", "Failed"), "Failed"),
        (("FailureTarget", "Suspended"), "Suspended"),
        (("SuccessCriteriaMet", "FailureTarget"), "FailureTarget"),
        (("SuccessCriteriaMet",), "SuccessCriteriaMet"),
    ],
)
def test_job_status_column_shows_most_important_condition(conditions: tuple[str, ...], status: str) -> None:
    assert cells(job(true(*conditions)))["Status"] == status


def test_deleted_job_is_terminating_unless_finished() -> None:
    deleted = {"deletionTimestamp": format_time(NOW)}
    assert cells(make(scheme.JOB, metadata=deleted, status=true("Suspended")))["Status"] == "Terminating"
    assert cells(make(scheme.JOB, metadata=deleted, status=true("Complete")))["Status"] == "Complete"


@pytest.mark.parametrize(
    ("spec", "completions"),
    [
        ({"completions": 2, "parallelism": 2}, "1/2"),
        ({"parallelism": 3}, "1/1 of 3"),
        ({"parallelism": 1}, "1/1"),
        ({}, "1/1"),
    ],
)
def test_completions_column_shows_succeeded_and_desired_pods(spec: dict[str, int], completions: str) -> None:
    assert cells(job({"succeeded": 1}, **spec))["Completions"] == completions


def test_job_duration_ends_at_completion_time() -> None:
    start, end = format_time(NOW - HOUR), format_time(NOW - HOUR + 97 * SECOND)
    assert cells(job())["Duration"] == ""
    assert cells(job({"startTime": start}))["Duration"] == "60m"
    assert cells(job({"startTime": start, "completionTime": end}))["Duration"] == "97s"


def test_wide_job_row_shows_containers_and_selector() -> None:
    containers = [{"name": "main", "image": "python"}, {"name": "side", "image": "pause"}]
    selector = {
        "matchLabels": {"b": "2", "a": "1"},
        "matchExpressions": [
            {"key": "aa", "operator": "NotIn", "values": ["y", "x"]},
            {"key": "c", "operator": "In", "values": ["z"]},
            {"key": "d", "operator": "Exists"},
            {"key": "e", "operator": "DoesNotExist"},
        ],
    }
    result = cells(job(template={"spec": {"containers": containers}}, selector=selector), wide=True)
    assert (result["Containers"], result["Images"]) == ("main,side", "python,pause")
    assert result["Selector"] == "a=1,aa notin (x,y),b=2,c in (z),d,!e"
    assert cells(job(), wide=True)["Selector"] == "<none>"


def test_headless_service_row_has_no_addresses() -> None:
    result = cells(service(clusterIP="None", selector={"job-name": "a"}), wide=True)
    assert list(result.values()) == ["a", "ClusterIP", "None", "<none>", "<none>", "0s", "job-name=a"]


def test_load_balancer_row_shows_ingress_points_before_external_ips() -> None:
    points = {"loadBalancer": {"ingress": [{"hostname": "b.example"}, {"ip": "10.0.0.1"}]}}
    balancer = service(points, type="LoadBalancer", clusterIPs=["10.1.0.1"], externalIPs=["10.2.0.1"])
    assert cells(balancer)["External-IP"] == "10.0.0.1,b.example,10.2.0.1"
    assert cells(balancer)["Cluster-IP"] == "10.1.0.1"
    assert cells(service(type="LoadBalancer"))["External-IP"] == "<pending>"
    assert cells(service(type="ExternalName", externalName="c.example"))["External-IP"] == "c.example"


def test_ports_column_shows_port_node_port_and_protocol() -> None:
    ports = [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]
    assert cells(service(type="NodePort", ports=ports))["Port(s)"] == "80:30080/TCP,53/UDP"


def test_priority_class_row_shows_global_default() -> None:
    assert list(
        cells(make(scheme.PRIORITY_CLASS, value=20, globalDefault=True, preemptionPolicy="Never")).values()
    ) == ["a", "20", "true", "0s", "Never"]
    assert list(cells(make(scheme.PRIORITY_CLASS)).values()) == ["a", "0", "false", "0s", "PreemptLowerPriority"]


def test_config_map_secret_and_account_rows_show_entry_count() -> None:
    config_map = make(scheme.CONFIG_MAP, data={"a": "", "b": ""}, binaryData={"c": ""})
    assert cells(config_map)["Data"] == "3"
    assert cells(make(scheme.SECRET, data={"a": ""})) == {"Name": "a", "Type": "Opaque", "Data": "1", "Age": "0s"}
    assert cells(make(scheme.SERVICE_ACCOUNT))["Secrets"] == "0"


def test_namespace_row_shows_phase() -> None:
    assert cells(make(scheme.NAMESPACE, status={"phase": "Active"}))["Status"] == "Active"


def test_pod_template_row_shows_labels() -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "python"}]}}
    assert list(cells(make(scheme.POD_TEMPLATE, template=template)).values()) == ["a", "main", "python", "app=a"]


def test_age_is_unknown_without_creation_timestamp() -> None:
    assert printing.row({"apiVersion": "v1", "kind": "Other", "metadata": {"name": "a"}}, now=NOW, wide=False) == [
        "a",
        "<unknown>",
    ]


def test_table_column_width_is_at_least_six() -> None:
    assert printing.format_table([["A", "B"], ["1", "2"]]) == "A     B\n1     2\n"


def test_table_keeps_padding_before_empty_last_cell() -> None:
    assert printing.format_table([["NAME", "COHORT"], ["a", ""]]) == "NAME   COHORT\na      \n"


def test_table_cell_is_truncated_at_line_break_and_drops_control_characters() -> None:
    assert printing.format_table([["one\ntwo", "\x1b[31mred"]]) == "one...    [31mred\n"
