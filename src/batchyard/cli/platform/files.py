"""Reading of the platform.yaml that is named on the command line."""

import sys
from pathlib import Path
from typing import NoReturn

from batchyard.api.errors import FieldError
from batchyard.api.yaml_documents import DocumentLines, read_documents
from batchyard.cli import output
from batchyard.provision.loading import InvalidPlatform, PlatformFault, PlatformSource, read_platform
from batchyard.provision.model import PlatformModel

STANDARD_INPUT = "-"


def read_source(file: str) -> PlatformSource:
    """The text of a file or of standard input; ends the command with 1 if it cannot be read."""
    raw = _bytes_of(file)
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        _refuse(file, f"not a text file: byte {wrong.start} is not UTF-8", "save it as UTF-8")
    return PlatformSource("<stdin>" if file == STANDARD_INPUT else file, text)


def sound_platform(source: PlatformSource, project: str) -> PlatformModel:
    """The platform of a text; ends the command with 1 and all faults if it is invalid."""
    try:
        return read_platform(source, project)
    except InvalidPlatform as invalid:
        output.fail(f"{invalid}\nbatchyard: {source.name} is not a valid platform")


def lines_of(source: PlatformSource) -> DocumentLines:
    """The line numbers of the fields in a platform's text."""
    document = next(read_documents(source.text))
    return DocumentLines(document.text, document.line)


def _bytes_of(file: str) -> bytes:
    if file == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as wrong:
        reported = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        _refuse(
            file, f"cannot be read: {reported}", "choose another file, or create one with `batchyard platform init`"
        )


def _refuse(file: str, problem: str, remedy: str) -> NoReturn:
    output.fail(str(PlatformFault(file, 0, FieldError("", problem, remedy))))
