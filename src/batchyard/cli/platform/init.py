"""`batchyard platform init`: writes an example platform.yaml."""

from pathlib import Path

from batchyard.cli import output
from batchyard.package_data import read_folder

FOLDER = "examples/platforms"


def run(example: str, file: Path) -> None:
    """Write the example; ends the command with 1 if the file exists."""
    try:
        text = read_folder(FOLDER, ".yaml")[f"{example}.yaml"]
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except FileExistsError:
        output.fail(f"batchyard: {file} already exists and was not changed; choose another file")
    except OSError as wrong:
        output.fail(f"batchyard: cannot write {file}: {wrong.strerror or wrong}; choose another file")
    output.report_line(f"batchyard: wrote {file}; next: batchyard platform plan {file}")
