"""Kueue's Configuration for commands: remarks on fields without effect."""

from pathlib import Path

import pytest

from batchyard.cli.kueue_configuration import read_kueue_settings

HEADER = "apiVersion: config.kueue.x-k8s.io/{version}\nkind: Configuration\n"
POD_OPTIONS = "integrations:\n  podOptions:\n    namespaceSelector: {matchLabels: {team: a}}\n"


def test_pod_options_are_reported_and_have_no_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kueue.yaml"
    file.write_text(HEADER.format(version="v1beta1"))
    plain_settings = read_kueue_settings(file)
    file.write_text(HEADER.format(version="v1beta1") + POD_OPTIONS)
    capsys.readouterr()
    assert read_kueue_settings(file).managed_jobs == plain_settings.managed_jobs
    remedy = "to select the Namespaces of pods, set managedJobsNamespaceSelector"
    assert f"integrations.podOptions has no effect, as in Kueue since 0.15; {remedy}" in capsys.readouterr().err
