"""Traces are read as scenarios; faults are reported."""

from pathlib import Path

import pytest

from batchyard.base.instant import SECOND
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.simulate import read_scenario
from batchyard.sim.traces import TracedPodShape, merge_trace, parse_load, read_trace
from unit.sim.trace_make import NODE_COLUMNS, NODES, POD_COLUMNS, PODS, write_trace

JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, annotations: {batchyard.dev/submit-at: 20s}}\nspec:\n"
TEMPLATE = "  template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}\n"


def faults(folder: Path) -> list[str]:
    """The faults of a trace, without the name of the folder."""
    with pytest.raises(InvalidScenario) as caught:
        read_trace(folder)
    return [str(fault).replace(str(folder), "") for fault in caught.value.faults]


def test_trace_pods_have_times_and_shapes(tmp_path: Path) -> None:
    pods = {pod.name: pod for pod in read_trace(write_trace(tmp_path)).pods}
    assert pods["b"].shape == TracedPodShape(1000, 1 << 30, 600, ("G2",))
    assert (pods["b"].created, pods["b"].scheduled, pods["b"].deleted) == (10 * SECOND, 12 * SECOND, 60 * SECOND)
    assert (pods["a"].shape.gpu_milli, pods["d"].scheduled) == (2000, None)


def test_trace_rows_become_objects(tmp_path: Path) -> None:
    first, *others = read_trace(write_trace(tmp_path)).scenario.steps
    _, node, _, pod = first.apply
    assert node["status"]["allocatable"]["batchyard.dev/gpu-milli"] == "2000"
    assert pod["metadata"]["annotations"] == {"batchyard.dev/runtime": "100s"}
    (failing,) = others[0].apply
    assert failing["metadata"]["annotations"] == {"batchyard.dev/runtime": "48s", "batchyard.dev/exit-code": "1"}
    assert [key.name for step in others for key in step.delete] == ["d"]


def test_trace_file_with_bom_and_crlf_is_read(tmp_path: Path) -> None:
    write_trace(tmp_path)
    path = tmp_path / "pods.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_trace(tmp_path).pods) == len(PODS)


def test_invalid_rows_are_reported_with_line_numbers(tmp_path: Path) -> None:
    early, cut = "c,1000,1024,1,600,,LS,Running,20,10,", "d,1000"
    write_trace(tmp_path, (PODS[0], PODS[0], early, cut), (*NODES, "n,many,1,1,T4", "m,1,1,-1,T4"))
    assert [fault.partition("; ")[0] for fault in faults(tmp_path)] == [
        "/pods.csv:5: the row does not have 11 fields like the first line",
        "/pods.csv:3: the name 'a' is already used in /pods.csv:2",
        "/nodes.csv:4: the row is invalid: cpu_milli is 'many', not a whole number",
        "/nodes.csv:5: the row is invalid: gpu is '-1', not a whole number",
        (
            "/pods.csv:4: the row is invalid: creation_time 20, scheduled_time - and deletion_time 10"
            " are not in ascending order"
        ),
    ]


@pytest.mark.parametrize("share", ["0", "1001"])
def test_gpu_share_out_of_range_is_rejected(tmp_path: Path, share: str) -> None:
    (fault,) = faults(write_trace(tmp_path, (f"a,1000,1024,1,{share},,LS,Running,0,100,0",)))
    assert fault.startswith(f"/pods.csv:2: the row is invalid: gpu_milli is '{share}', but must be from 1 to 1000 for")


def test_load_factor_shortens_arrivals_and_keeps_run_times(tmp_path: Path) -> None:
    pods = {pod.name: pod for pod in read_trace(write_trace(tmp_path), parse_load("2.5")).pods}
    assert (pods["b"].created, pods["b"].scheduled, pods["b"].deleted) == (4 * SECOND, 6 * SECOND, 54 * SECOND)
    assert (pods["d"].created, pods["d"].deleted) == (12 * SECOND, 72 * SECOND)


@pytest.mark.parametrize("text", ["0", "0.0", "-1", "1e3", "a", ""])
def test_invalid_load_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid load: use a number above 0"):
        parse_load(text)


def test_folder_without_trace_is_rejected(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path / "none")
    assert fault == ": cannot be read: No such file or directory; check the name and the permissions"
    (tmp_path / "nodes.csv").write_text(f"{NODE_COLUMNS}\n")
    assert faults(tmp_path) == [f": the folder has no CSV file of pods; add a CSV file with the columns {_needed()}"]


def test_file_with_unknown_columns_is_rejected(tmp_path: Path) -> None:
    (write_trace(tmp_path) / "more.csv").write_text("a,b\n1,2\n")
    (fault,) = faults(tmp_path)
    assert fault.startswith("/more.csv:1: the columns are those of neither nodes nor pods; nodes need sn, cpu_milli")


def test_missing_column_is_named(tmp_path: Path) -> None:
    (write_trace(tmp_path) / "more.csv").write_text("sn,cpu_milli,memory_mib,gpus,model\na,1,1,0,x\n")
    (fault,) = faults(tmp_path)
    assert fault.startswith("/more.csv:1: the table of nodes lacks the column gpu; add the missing column")


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    (write_trace(tmp_path) / "more.csv").write_bytes(b"\xff\xfe")
    assert faults(tmp_path) == [
        "/more.csv: the file is not text: byte 0 is not UTF-8; save the file as UTF-8, or remove the file"
    ]


def test_manifests_are_merged_with_trace(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path))
    scenario, _ = read_scenario([JOB + TEMPLATE])
    both = merge_trace(trace, scenario)
    assert [step.at // SECOND for step in both.steps] == [0, 10, 20, 30, 40, 90]
    assert [obj["kind"] for obj in both.steps[2].apply] == ["Pod", "Job"]
    assert both.counts == {"Node": 2, "Pod": 5, "Job": 1}


def _needed() -> str:
    return POD_COLUMNS.replace("qos,", "").replace(",", ", ")


def test_trace_pods_of_equal_shape_share_their_spec(tmp_path: Path) -> None:
    write_trace(tmp_path, (PODS[0], PODS[0].replace("a,", "z,", 1), PODS[1]))
    steps = read_trace(tmp_path).scenario.steps
    specs = {obj["metadata"]["name"]: obj["spec"] for step in steps for obj in step.apply if obj["kind"] == "Pod"}
    assert specs["a"] is specs["z"] is not specs["b"]
