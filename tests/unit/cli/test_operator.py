"""What `operator` refuses before anything runs, and says why."""

from pathlib import Path

from typer.testing import CliRunner

from batchyard.cli.app import app


def told_of(*arguments: str) -> str:
    """What a command that fails says."""
    done = CliRunner(env={"KUBECONFIG": None, "COLUMNS": "200"}).invoke(app, arguments)
    assert done.exit_code in {1, 2}, done.output
    return " ".join(done.output.split())


def test_a_kubeconfig_that_is_not_there_is_told(tmp_path: Path) -> None:
    reported = told_of("operator", "--kubeconfig", str(tmp_path / "none"))
    assert "none: no such file; name another with --kubeconfig" in reported


def test_controllers_that_run_elsewhere_alone_are_refused() -> None:
    assert "'runtime' is not in the list of known controllers: admission" in told_of(
        "operator", "--controllers", "runtime"
    )
    assert "'queues' is not in the list of known controllers" in told_of("up", "--controllers", "*,queues")


def test_a_lease_ends_after_who_holds_it_has_ended() -> None:
    reported = told_of("operator", "--leader-elect-renew-deadline", "15s")
    assert "the lease duration must exceed the renew deadline" in reported
    assert "'soon' is not a duration" in told_of("operator", "--leader-elect-retry-period", "soon")


def test_a_configuration_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kueue.yaml"
    assert "give a file with Kueue's Configuration" in told_of("operator", "--config", str(file))
    file.write_text(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nmanageJobsWithoutQueueName: true\n"
    )
    reported = told_of("operator", "--config", str(file))
    assert "kueue.yaml: manageJobsWithoutQueueName: this is not done here: jobs that name no queue run" in reported
