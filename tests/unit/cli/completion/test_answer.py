"""The completions of a word of a command line, as the scripts of the shells request them."""

import importlib.util
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchyard.cli.completion.answer import complete, completion_text
from batchyard.cli.completion.names import NAMES_MAX, NameQuery, list_names
from batchyard.cli.options import GuideStepName

ROOT = Path(__file__).parents[4]
#: A kubeconfig for a server that does not answer, with plain HTTP.
KUBECONFIG = """\
contexts: [{{name: here, context: {{cluster: c, user: u, namespace: team}}}}]
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
current-context: here
"""


def values(*words: str) -> list[str]:
    """Return the completions of the last word."""
    return [value for value, _ in complete(words).rows]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sim"], ["simulate"]),
        (["--v"], ["--version"]),
        (["simulate", "--out"], ["--output"]),
        (["simulate", "-o", ""], ["table", "wide", "json", "yaml"]),
        (["simulate", "-o", "j"], ["json"]),
        (["simulate", "--output=j"], ["--output=json"]),
        (["simulate", "examples", "-o", "y"], ["yaml"]),
        (["guide", "--step", ""], [*GuideStepName]),
        (["platform", "r"], ["render"]),
        (["platform", "create", "--dry"], ["--dry-run"]),
        (["fault", "node", "x", "--dr"], ["--drain"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["eta", "--no-"], ["--no-arrivals"]),
        (["why", ""], ["workload/", "job/", "jobset/", "pod/", "clusterqueue/"]),
        (["eta", "j"], ["job/", "jobset/"]),
        (["decisions", "l"], ["localqueue/"]),
        (["fly", ""], []),
        (["status", ""], []),
        (["simulate", "--until", ""], []),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], expected: list[str]) -> None:
    assert values(*words) == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["simulate", ""], "files"),
        (["simulate", "a", "b", ""], "files"),
        (["compare", "a", ""], "files"),
        (["simulate", "--cluster", ""], "files"),
        (["up", "--data-dir", ""], "folders"),
        (["submit", "--queue", "q", "--", ""], "folders"),
        (["why", "j"], "parts"),
    ],
)
def test_shell_lists_files_and_folders(words: list[str], kind: str) -> None:
    assert complete(words).kind == kind


def test_kind_of_object_is_completed_before_its_name() -> None:
    assert values("why", "job") == ["job/", "jobset/"]


def test_words_that_bash_splits_are_joined() -> None:
    assert completion_text(["", "simulate", "--output", "=", "j"]) == "values\njson\t\n"
    assert completion_text(["", "simulate", "--output", "="]).splitlines()[1:] == [
        "table\t",
        "wide\t",
        "json\t",
        "yaml\t",
    ]


def test_line_has_value_and_help() -> None:
    assert completion_text(["", "lin"]) == "values\nlint\tCheck manifests before they are applied.\n"
    assert completion_text([]).startswith("values\nsimulate\t")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "a: b: c", "{}", "current-context: x\ncontexts: []", KUBECONFIG.format(port=1)],
    ids=["empty", "list", "no YAML", "no contexts", "missing context", "no server"],
)
def test_no_names_without_usable_platform(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content, "utf-8")
    assert list_names("jobs", NameQuery(str(tmp_path / "kubeconfig"))) == []
    assert list_names("jobs", NameQuery(str(tmp_path / "none"))) == []


def test_silent_server_does_not_hold_up_the_shell(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(port=server.getsockname()[1]), "utf-8")
        assert list_names("jobs", NameQuery(f"{tmp_path}/none:{tmp_path}/kubeconfig")) == []


@contextmanager
def server_of_names(folder: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """Serve one request with objects of these names, at `kubeconfig` in the folder; yield the requests."""
    body = json.dumps({"items": [{"metadata": {"name": name}} for name in names]})
    requests: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        (folder / "kubeconfig").write_text(KUBECONFIG.format(port=server.getsockname()[1]), "utf-8")

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(1 << 16).decode())
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield requests
        thread.join()


def test_number_of_names_is_bounded(tmp_path: Path) -> None:
    """The server ignores the limit of the request."""
    with server_of_names(tmp_path, [f"n{number:04}" for number in range(NAMES_MAX + 5)]) as requests:
        names = list_names("localqueues", NameQuery(str(tmp_path / "kubeconfig")))
    assert (len(names), names[0], names[-1]) == (NAMES_MAX, "n0000", f"n{NAMES_MAX - 1:04}")
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/localqueues?limit=200"
    assert requests[0].startswith(f"GET {path} HTTP/1.1\r\n")
    assert "Authorization: Bearer secret\r\n" in requests[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["queue", "tr"], ["train"]),
        (["suspend", "job/tr"], ["job/train"]),
        (["logs", "train", "--pod", ""], ["report", "train"]),
    ],
)
def test_jobs_are_completed_with_and_without_their_kind(tmp_path: Path, words: list[str], expected: list[str]) -> None:
    with server_of_names(tmp_path, ["train", "report"]):
        rows = complete(words, str(tmp_path / "kubeconfig")).rows
    assert [value for value, _ in rows] == expected


def test_table_of_commands_is_current() -> None:
    spec = importlib.util.spec_from_file_location("completion_table", ROOT / "tools" / "completion_table.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    message = "run `python tools/completion_table.py`: the completion does not know the commands' current options"
    assert tool.TABLE.read_text("utf-8") == tool.table_text(), message
