"""Listings as tables, and as Lists that can be read again."""

import json
from typing import Any

import pytest
import yaml

from batchyard.api import scheme
from batchyard.cli.options import Output
from batchyard.cli.output import render, render_tables

COHORT = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "c"}}
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "m", "namespace": "n", "creationTimestamp": "1970-01-01T00:00:00Z"},
    "data": {"main.py": "a = 1\nb = 2\n", "short": "ü"},
}
LISTING = {scheme.COHORT: [COHORT], scheme.CONFIG_MAP: [CONFIG_MAP], scheme.JOB: []}


def rendered_table(output: Output) -> str:
    return render(LISTING, output, now=0)


def test_tables_of_several_kinds_are_separated_by_empty_line() -> None:
    assert rendered_table(Output.TABLE).splitlines() == [
        "NAME   AGE",
        "c      <unknown>",
        "",
        "NAMESPACE   NAME   DATA   AGE",
        "n           m      2      0s",
    ]


def test_empty_table_prints_no_resources_found() -> None:
    assert render_tables({scheme.JOB: []}, now=0) == "No resources found\n"


@pytest.mark.parametrize("output", [Output.JSON, Output.YAML])
def test_json_and_yaml_list_contain_unchanged_objects(output: Output) -> None:
    expected: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": ""},
        "items": [COHORT, CONFIG_MAP],
    }
    read = json.loads if output is Output.JSON else yaml.safe_load
    assert read(rendered_table(output)) == expected


def test_yaml_prints_multiline_strings_as_blocks() -> None:
    assert "    main.py: |\n      a = 1\n      b = 2\n    short: ü\n" in rendered_table(Output.YAML)


def test_yaml_repeats_shared_objects_without_anchors() -> None:
    assert "&id" not in render({scheme.COHORT: [COHORT, COHORT]}, Output.YAML, now=0)


def test_json_and_yaml_lists_have_sorted_fields() -> None:
    assert rendered_table(Output.JSON).startswith('{\n    "apiVersion": "v1",\n    "items": [')
    assert rendered_table(Output.YAML).startswith("apiVersion: v1\nitems:\n- apiVersion:")
