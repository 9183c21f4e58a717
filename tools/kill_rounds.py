"""Kills a platform with sixteen concurrent writers repeatedly: `python tools/kill_rounds.py --rounds 200`.

Checks after each restart:

- Every acknowledged write exists, and revisions increase.
- A watch that resumes from its last revision gets each change of the journal exactly once.
- A watch that starts with initial events resumes from its bookmark.
- Each backup made during the round is complete.

The rounds alternate between `--sync full` and `--sync process`. Then kills the platform repeatedly while teams preempt
each other. The final state must equal that of a run without kills, and quota must hold at every revision.

Use the project's environment. Exits with 1 if a check fails.
"""

import argparse
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.store.journal import back_up
from batchyard.store.journal_file import JournalError
from e2e_platform.convergence import end_of, faults_of
from e2e_platform.kill_rounds import RoundResponses, check_final_state, kill_round

SYNCS = ("full", "process")


def main() -> int:
    """Run all rounds and print their results; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="number of kills while teams preempt each other")
    args = parser.parse_args()
    answers = RoundResponses()
    with TemporaryDirectory() as folder:
        for number in range(args.rounds):
            run_round(Path(folder), number, answers, SYNCS[number % 2])
            counts = f"{len(answers.acknowledged)} acknowledged writes, {len(answers.watched)} watch events"
            print_line(f"round {number + 1}: {counts}, {len(answers.faults)} faults")
        check_final_state(Path(folder), answers)
    answers.faults += convergence_faults(args.kills)
    for fault in answers.faults:
        print_line(fault)
    return 1 if answers.faults else 0


def run_round(folder: Path, number: int, answers: RoundResponses, sync: str) -> None:
    """Run one round, and make backups until it ends; `sync` is the value of --sync."""
    is_over = threading.Event()

    def make_backups() -> None:
        file = folder / "backup.db"
        while not is_over.wait(0.2):
            file.unlink(missing_ok=True)
            try:
                back_up(folder / JOURNAL_FILE, file)
            except JournalError as error:
                if "does not exist; pass the data directory" not in str(error):
                    answers.faults.append(f"round {number}: {error}")

    backups = threading.Thread(target=make_backups)
    backups.start()
    try:
        kill_round(folder, number, answers, "--sync", sync)
    finally:
        is_over.set()
        backups.join()


def convergence_faults(kills: int) -> list[str]:
    """Return the violations during kills, and the difference from the final state without kills."""
    with TemporaryDirectory() as undisturbed, TemporaryDirectory() as killed:
        expected, actual = end_of(Path(undisturbed), 0), end_of(Path(killed), kills)
        faults = faults_of(Path(killed))
    print_line(f"{kills} kills while teams preempt each other: {len(faults)} faults")
    if sorted(expected.values()) != sorted(actual.values()):
        faults = [*faults, f"final state {actual}, expected {expected}"]
    return faults


def print_line(line: str) -> None:
    """Write a line to stdout, and flush."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
