"""`--config FILE`: Kueue's Configuration as it is given to `up` and `operator`, and what is told of it."""

from collections.abc import Iterator
from pathlib import Path

from batchyard.api.kueue_configuration import InvalidConfiguration, read_configuration
from batchyard.api.meta import Obj
from batchyard.cli import output
from batchyard.scheduling.kueue_configuration import KueueSettings, left_aside, not_done, of_deployment, settings_of
from batchyard.server.operator.kueue_configuration import told_beside


def configuration_in(file: Path) -> Obj:
    """The Configuration of a file; ends the command where there is none."""
    try:
        return read_configuration(str(file), file.read_text("utf-8"))
    except InvalidConfiguration as invalid:
        output.fail(str(invalid))
    except OSError as error:
        output.fail(f"batchyard: {file}: {error.strerror}; name a file that holds Kueue's Configuration with --config")
    except UnicodeDecodeError as error:
        output.fail(f"batchyard: {file}: {error}")


def settings_in(file: Path) -> KueueSettings:
    """What it says, for whoever decides by it; ends the command where it asks for what is not done here."""
    return settings_of(kept_in(file))


def kept_in(file: Path) -> Obj:
    """The Configuration of a file that can be kept; ends the command where it asks for what is not done here."""
    found = configuration_in(file)
    refused = [f"{file}: {fault}" for fault in not_done(found)]
    if refused:
        output.fail("\n".join(refused))
    for line in told_of(found):
        output.tell(f"batchyard: {file}: {line}")
    return found


def beside(file: Path) -> KueueSettings:
    """What it says, for whoever looks on beside a Kueue that decides by it."""
    found = configuration_in(file)
    for line in told_beside(found):
        output.tell(f"batchyard: {file}: {line}")
    return settings_of(found)


def told_of(configuration: Obj) -> Iterator[str]:
    """What is to be said of one that is read: what of it nobody here looks at."""
    deployment, aside = of_deployment(configuration), list(left_aside(configuration))
    if deployment:
        yield f"for Kueue's own deployment, and not looked at: {', '.join(deployment)}"
    if aside:
        yield f"not done here: {'; '.join(aside)}"
