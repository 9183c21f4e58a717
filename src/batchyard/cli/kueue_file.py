"""`--config FILE`: Kueue's Configuration for `up` and `operator`, with remarks on unsupported fields."""

from collections.abc import Iterator
from pathlib import Path

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.cli import output
from batchyard.scheduling.kueue_configuration import KueueSettings, left_aside, not_done, of_deployment, settings_of
from batchyard.server.operator.kueue_configuration import told_beside


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
    return settings_of(kept_in(file))


def kept_in(file: Path) -> Obj:
    """The Configuration in a file; ends the command if it requires unsupported features, prints ignored fields."""
    found = configuration_in(file)
    refused = [f"{file}: {fault}" for fault in not_done(found)]
    if refused:
        output.fail("\n".join(refused))
    for line in told_of(found):
        output.tell(f"batchyard: {file}: {line}")
    return found


def beside(file: Path) -> KueueSettings:
    """The settings for shadow mode beside a Kueue that uses this Configuration."""
    found = configuration_in(file)
    for line in told_beside(found):
        output.tell(f"batchyard: {file}: {line}")
    return settings_of(found)


def told_of(configuration: Obj) -> Iterator[str]:
    """Remarks on the fields that have no effect here."""
    deployment, aside = of_deployment(configuration), list(left_aside(configuration))
    if deployment:
        yield f"ignored, for Kueue's own deployment: {', '.join(deployment)}"
    if aside:
        yield f"not supported here: {'; '.join(aside)}"
