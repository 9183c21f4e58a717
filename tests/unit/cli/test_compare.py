"""`compare` as a command: its output formats, its page, and its errors."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).parents[3]
FOLDER = "examples/compare"
PAIR = (f"{FOLDER}/configurations/apart.yaml", f"{FOLDER}/configurations/borrowing.yaml")
LOAD = ("--trace", f"{FOLDER}/load")


def test_table_begins_with_summary_line(batchyard: Batchyard) -> None:
    done = batchyard("compare", *PAIR, *LOAD)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("borrowing against apart: the mean wait goes from 14m16s to 5m21s")
    assert lines[2].split() == ["APART", "BORROWING", "CHANGE"]
    assert "# waits by team" in lines


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_json_and_yaml_contain_same_comparison(
    form: str, read: Callable[[str], dict[str, object]], batchyard: Batchyard
) -> None:
    result = read(batchyard("compare", *PAIR, *LOAD, "-o", form).stdout)
    assert (result["kind"], result["names"]) == ("ConfigurationComparison", {"a": "apart", "b": "borrowing"})
    (row,) = result["figures"]["overall"]  # type: ignore[index]
    assert row["difference"]["makespan"] == -2400


def test_html_page_is_self_contained(batchyard: Batchyard, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    batchyard("compare", *PAIR, *LOAD, "--html", page)
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "http" not in text
    assert "Waits by team" in text


def test_nodes_and_costs_are_compared_with_clusters(batchyard: Batchyard) -> None:
    cluster = "examples/compare/cluster.yaml"
    clusters = ("--cluster-a", cluster, "--cluster-b", cluster)
    result = json.loads(batchyard("compare", *PAIR, *LOAD, *clusters, "-o", "json", "--seeds", "2").stdout)
    costs = result["figures"]["teams"]
    for side in "ab":
        whole = result["figures"]["overall"][0][side]["cost"]
        assert whole > 0
        assert round(sum(row[side].get("cost", 0) for row in costs), 2) == whole
    assert {row["figure"] for row in result["repeats"]} >= {"meanWait", "cost"}


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (PAIR, "it contains no Job, JobSet, Pod or Workload; pass a load for both with --trace"),
        ((*PAIR, *LOAD, "--load", "2"), "set the folder of a trace with --trace, or remove --load"),
        ((PAIR[0], "none.yaml", *LOAD), "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_invalid_comparison_is_reported(arguments: tuple[str, ...], stated: str, batchyard: Batchyard) -> None:
    done = batchyard("compare", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert stated in done.stderr


def test_documented_output_matches_command(batchyard: Batchyard) -> None:
    text = (ROOT / "docs" / "how-to" / "compare.md").read_text("utf-8")
    blocks = re.findall(r"```text\n(?!batchyard )(.*?)```", text, re.DOTALL)
    fair = (PAIR[1], f"{FOLDER}/configurations/fair.yaml")
    for block, pair in zip(blocks, (PAIR, fair), strict=True):
        printed = batchyard("compare", *pair, *LOAD).stdout.splitlines()
        assert [line for line in block.splitlines() if line not in {*printed, "..."}] == []
