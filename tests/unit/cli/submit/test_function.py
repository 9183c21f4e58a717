"""Python functions as Jobs: what is shipped, what the pod runs, and what its output means."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchyard import RemoteJobError, job
from batchyard.cli.submit.function import (
    CALL_BYTES_MAX,
    RemoteTraceback,
    call_files,
    last_pods_by_index,
    outcome_in_log,
    value_of,
)
from unit.cli.submit.shipped import OddError, divide

MARK = "batchyard-outcome-n"


def run_pod(folder: Path, *calls: tuple[Any, ...], index: int = 0) -> tuple[int, str]:
    """Run the shipped files as a pod without batchyard does; return the exit code and the log."""
    for name, text in call_files(divide.function, [(each, {}) for each in calls]).items():
        (folder / name).write_text(text)
    program = [sys.executable, "-I", "-S", str(folder / "run.py"), str(folder), MARK]
    environment = {"JOB_COMPLETION_INDEX": str(index)}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    return done.returncode, done.stdout


def value_in_pod(folder: Path, *calls: tuple[Any, ...], index: int = 0) -> Any:
    outcome = outcome_in_log(run_pod(folder, *calls, index=index)[1], MARK)
    assert outcome is not None
    return value_of(outcome, divide.function)


def test_function_runs_here_when_called() -> None:
    assert divide(6, b=3) == 2


def test_pod_returns_the_value_of_its_index(tmp_path: Path) -> None:
    assert value_in_pod(tmp_path, (1, 2), (9, 2), index=1) == 4.5
    assert run_pod(tmp_path, (1, 2))[0] == 0


def test_large_value_is_printed_in_several_lines(tmp_path: Path) -> None:
    _, log = run_pod(tmp_path, (50_000, 10))
    assert log.count(MARK) > 1
    assert value_in_pod(tmp_path, (50_000, 10)) == "x" * 50_000
    assert outcome_in_log(log.replace(MARK, "other", 1), MARK) is None, "a line is missing"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ((1, 0), ZeroDivisionError, "division by zero"),
        ((1, 7), OddError, "seven"),
        ((1, 8), RemoteJobError, "SystemExit: eight"),
        ((1, 9), TypeError, "not JSON serializable"),
        ((1_000_001, 10), ValueError, "may have 1000000"),
    ],
)
def test_exception_has_its_type_and_traceback(
    tmp_path: Path, call: tuple[int, int], error: type[Exception], message: str
) -> None:
    found = value_in_pod(tmp_path, call)
    assert isinstance(found, error)
    assert message in str(found)
    assert isinstance(found.__cause__, RemoteTraceback)
    assert message.partition(": ")[2] in str(found.__cause__)
    assert run_pod(tmp_path, call)[0] == 1


@pytest.mark.parametrize("log", ["", f"{MARK} 2 e30=\n", f"{MARK} 1 !\n", f"{MARK} 1 W10=\n", f"{MARK} 1\n"])
def test_log_without_an_outcome(log: str) -> None:
    assert outcome_in_log(log, MARK) is None


def test_outcome_names_only_exceptions() -> None:
    for name in ("eval", "KeyboardInterrupt", "divide", "UnicodeDecodeError"):
        error = value_of({"error": name, "message": "m", "traceback": ""}, divide.function)
        assert (type(error), str(error)) == (RemoteJobError, f"{name}: m")


def nested() -> Callable[[], None]:
    @job()
    def inner() -> None:
        """Have no name at the top level."""

    return inner


@pytest.mark.parametrize("function", [nested(), job()(lambda: None), job()(len), job()(Path)])
def test_function_without_a_source_file_is_rejected(function: Any) -> None:
    with pytest.raises(ValueError, match="define it with def at the top level of a file"):
        function.submit()


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (object(), TypeError, "has the type object"),
        ([{"a": {1: 2}}], TypeError, "a key that is not a string"),
        (b"bytes", TypeError, "has the type bytes"),
        ([math.nan], ValueError, "is nan, which JSON cannot express"),
        (json.loads("[" * 500 + "]" * 500), ValueError, "nested deeper than 200 levels"),
        ("x" * CALL_BYTES_MAX, ValueError, "store large data on a volume"),
    ],
)
def test_argument_that_cannot_be_shipped_is_rejected(argument: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        divide.submit(argument)  # type: ignore[arg-type]


def test_call_that_does_not_fit_the_signature_is_rejected() -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        divide.submit(1, 2, 3)  # type: ignore[call-arg]


@pytest.mark.parametrize("inputs", [[], range(10_001)])
def test_number_of_inputs_is_bounded(inputs: Any) -> None:
    with pytest.raises(ValueError, match="map needs 1 to 10000 inputs"):
        divide.map(inputs)


def test_decorator_needs_parentheses() -> None:
    with pytest.raises(TypeError):
        job(divide.function)  # type: ignore[call-arg, arg-type]


def test_missing_platform_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RemoteJobError, match=r"no platform runs in \.batchyard"):
        divide.submit(1)


def test_succeeded_pod_decides_its_index_or_else_the_latest() -> None:
    def pod(name: str, index: str, phase: str, at: str) -> dict[str, Any]:
        annotations = {"batch.kubernetes.io/job-completion-index": index}
        metadata = {"name": name, "annotations": annotations, "creationTimestamp": at}
        return {"metadata": metadata, "status": {"phase": phase}}

    pods = [pod("a", "0", "Succeeded", "1"), pod("b", "0", "Failed", "2"), pod("c", "1", "Failed", "3")]
    pods.append(pod("d", "1", "Failed", "2"))
    assert {index: each["metadata"]["name"] for index, each in last_pods_by_index(pods).items()} == {0: "a", 1: "c"}


def test_import_of_the_decorator_loads_no_client() -> None:
    code = "import sys; from batchyard import job; sys.exit(bool({'aiohttp', 'asyncio', 'typer'} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True)
