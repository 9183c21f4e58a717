"""`--config FILE`: Kueue's Configuration for `up` and `operator`, with remarks on unsupported fields."""

from collections.abc import Iterator
from pathlib import Path

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.cli import output
from batchyard.scheduling.kueue_configuration import (
    KueueSettings,
    deployment_fields,
    ignored_settings,
    parse_kueue_settings,
    unsupported_field_errors,
)
from batchyard.server.operator.coexistence import unsupported_settings


def configuration_in(file: Path) -> Obj:
    """The Configuration in a file; ends the command if it is invalid."""
    try:
        return read_configuration(str(file), file.read_text("utf-8"))
    except InvalidConfiguration as invalid:
        output.fail(str(invalid))
    except OSError as error:
        output.fail(f"batchyard: {file}: {error.strerror}; give a file with Kueue's Configuration to --config")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {file}: {error}")


def settings_in(file: Path) -> KueueSettings:
    """The settings of a Configuration; ends the command if it requires unsupported features."""
    return parse_kueue_settings(kept_in(file))


def kept_in(file: Path) -> Obj:
    """The Configuration in a file; ends the command if it requires unsupported features, prints ignored fields."""
    found = configuration_in(file)
    refused = [f"{file}: {fault}" for fault in unsupported_field_errors(found)]
    if refused:
        output.fail("\n".join(refused))
    for line in configuration_remarks(found):
        output.report_line(f"batchyard: {file}: {line}")
    return found


def beside(file: Path) -> KueueSettings:
    """The settings for shadow mode beside a Kueue that uses this Configuration."""
    found = configuration_in(file)
    for line in unsupported_settings(found):
        output.report_line(f"batchyard: {file}: {line}")
    return parse_kueue_settings(found)


def configuration_remarks(configuration: Obj) -> Iterator[str]:
    """Remarks on the fields that have no effect here."""
    deployment, aside = deployment_fields(configuration), list(ignored_settings(configuration))
    if deployment:
        yield f"ignored, for Kueue's own deployment: {', '.join(deployment)}"
    if aside:
        yield f"not supported here: {'; '.join(aside)}"
