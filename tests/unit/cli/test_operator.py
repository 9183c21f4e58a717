"""Arguments that `operator` rejects before it runs anything."""

from pathlib import Path

from typer.testing import CliRunner

from batchyard.cli.app import app


def output_of_failure(*arguments: str) -> str:
    """Run a failing command, and return its output."""
    done = CliRunner(env={"KUBECONFIG": None, "COLUMNS": "200"}).invoke(app, arguments)
    assert done.exit_code in {1, 2}, done.output
    return " ".join(done.output.split())


def test_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    reported = output_of_failure("operator", "--kubeconfig", str(tmp_path / "none"))
    assert "none: no such file; select another file with --kubeconfig" in reported


def test_unknown_controllers_are_rejected() -> None:
    assert (
        "Invalid value for --controllers: 'runtime' is not in the list of known controllers: admission"
        in output_of_failure("operator", "--controllers", "runtime")
    )
    assert "'queues' is not in the list of known controllers" in output_of_failure("up", "--controllers", "*,queues")


def test_invalid_lease_durations_are_rejected() -> None:
    reported = output_of_failure("operator", "--leader-elect-renew-deadline", "15s")
    assert "--leader-elect-lease-duration must exceed --leader-elect-renew-deadline" in reported
    assert "'soon' is not a duration" in output_of_failure("operator", "--leader-elect-retry-period", "soon")


def test_unsupported_configuration_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "kueue.yaml"
    assert "set --config to a readable file with Kueue's Configuration" in output_of_failure(
        "operator", "--config", str(file)
    )
    file.write_text(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nfeatureGates: {PriorityBoost: true}\n"
    )
    reported = output_of_failure("operator", "--config", str(file))
    assert "kueue.yaml: featureGates.PriorityBoost: this setting is not supported: the scheduler ignores" in reported
