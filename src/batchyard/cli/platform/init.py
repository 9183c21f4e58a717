"""`batchyard platform init`: writes a platform.yaml to begin with."""

from pathlib import Path

from batchyard.cli import output
from batchyard.package_data import read_folder

FOLDER = "examples/platforms"


def run(example: str, file: Path) -> None:
    """Write the example; exits with 1 where there is a file of that name already."""
    try:
        text = read_folder(FOLDER, ".yaml")[f"{example}.yaml"]
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except FileExistsError:
        output.fail(f"batchyard: {file} is there already, and stays as it is; name another file")
    except OSError as wrong:
        output.fail(f"batchyard: {file} cannot be written: {wrong.strerror or wrong}; name another file")
    output.tell(f"batchyard: {file} is written; next: batchyard platform plan {file}")
