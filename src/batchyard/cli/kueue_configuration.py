"""Reading of Kueue's Configuration for the option `--config FILE` of several commands; prints unsupported fields."""

from collections.abc import Iterator
from pathlib import Path

from batchyard.api.kueue_configuration import InvalidConfiguration, has_pod_options, read_configuration
from batchyard.api.meta import Obj
from batchyard.cli import output
from batchyard.scheduling import kueue_configuration
from batchyard.scheduling.decisions import KueueVersion
from batchyard.scheduling.kueue_configuration import KueueSettings
from batchyard.server.operator.coexistence import unsupported_settings


def read_configuration_file(file: Path) -> Obj:
    """Return the Kueue Configuration in a file; the command exits if the file is unreadable or invalid."""
    try:
        return read_configuration(str(file), file.read_text("utf-8"))
    except InvalidConfiguration as invalid:
        output.fail(str(invalid))
    except OSError as error:
        remedy = "set --config to a readable file with Kueue's Configuration"
        output.fail(f"batchyard: {file}: {error.strerror}; {remedy}")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {file}: the file is not text: byte {error.start} is not UTF-8; save the file as UTF-8")


def read_kueue_settings(file: Path) -> kueue_configuration.KueueSettings:
    """Return the scheduler settings in a Kueue Configuration file; exit like `read_supported_configuration`."""
    return kueue_configuration.parse_kueue_settings(read_supported_configuration(file))


def read_supported_configuration(file: Path) -> Obj:
    """Return the Kueue Configuration in a file, and print its ignored fields.

    The command exits if the file is unreadable or invalid, or has unsupported fields.
    """
    configuration = read_configuration_file(file)
    errors = [f"{file}: {fault}" for fault in kueue_configuration.unsupported_field_errors(configuration)]
    if errors:
        output.fail("\n".join(errors))
    for line in configuration_remarks(configuration):
        output.report_line(f"batchyard: {file}: {line}")
    if file.is_file() and has_pod_options(file.read_text("utf-8")):
        remedy = "to select the Namespaces of pods, set managedJobsNamespaceSelector"
        output.report_line(
            f"batchyard: {file}: integrations.podOptions has no effect, as in Kueue since 0.15; {remedy}"
        )
    return configuration


def read_shadow_settings(file: Path) -> kueue_configuration.KueueSettings:
    """Return the scheduler settings in the Configuration of the observed Kueue, and print the unsupported settings.

    The command exits if the file is unreadable or invalid.
    """
    configuration = read_configuration_file(file)
    for line in unsupported_settings(configuration):
        output.report_line(f"batchyard: {file}: {line}")
    return kueue_configuration.parse_kueue_settings(configuration)


def configuration_remarks(configuration: Obj) -> Iterator[str]:
    """Yield remarks on the fields of a Kueue Configuration that have no effect in batchyard."""
    deployment_only = kueue_configuration.deployment_fields(configuration)
    unsupported_fields = list(kueue_configuration.ignored_settings(configuration))
    if deployment_only:
        yield f"ignored fields, which configure Kueue's own deployment: {', '.join(deployment_only)}"
    if unsupported_fields:
        yield f"fields that batchyard does not support: {'; '.join(unsupported_fields)}"


def select_version(settings: KueueSettings, version: KueueVersion | None) -> KueueSettings:
    """Return the settings with the rules of a requested version of Kueue; None: of the recorded version, or default.

    A version that differs from the recorded one is reported.
    """
    if version is None:
        return settings
    if settings.recorded_version not in {None, version}:
        recorded = f"the state was recorded with the rules of Kueue {settings.recorded_version}"
        output.report_line(f"batchyard: {recorded}; --kueue-version {version} selects others")
    return settings.with_version(version)
