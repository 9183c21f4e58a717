"""Kills a platform under sixteen writers, again and again: `python tools/kill_rounds.py --rounds 200`.

Every write that was answered must be there after the restart, revisions must increase, a watch that goes on from its
last revision must see each change once, and as the journal has it; one that begins anew goes on from its bookmark. The
promise of the journal changes from round to round, and all the while somebody makes backups, each of which must be
whole. Then the platform is killed again and again under teams that preempt each other: they must come to the end that
they come to in peace, and quota holds at every revision.

Run it with the project's environment; it ends with 1 if that is not so.
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
from e2e_platform.kill_rounds import Answers, kill_round, last_look

SYNCS = ("full", "process")


def main() -> int:
    """Kill and look; tell each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="how often under teams that preempt each other")
    args = parser.parse_args()
    answers = Answers()
    with TemporaryDirectory() as folder:
        for number in range(args.rounds):
            backup(Path(folder), number, answers, SYNCS[number % 2])
            reported = f"{len(answers.acknowledged)} answered, {len(answers.watched)} watched"
            tell(f"round {number + 1}: {reported}, {len(answers.faults)} faults")
        last_look(Path(folder), answers)
    answers.faults += converged(args.kills)
    for fault in answers.faults:
        tell(fault)
    return 1 if answers.faults else 0


def backup(folder: Path, number: int, answers: Answers, sync: str) -> None:
    """One round, in which somebody makes backups as long as it lasts."""
    is_over = threading.Event()

    def keep() -> None:
        file = folder / "backup.db"
        while not is_over.wait(0.2):
            file.unlink(missing_ok=True)
            try:
                back_up(folder / JOURNAL_FILE, file)
            except JournalError as error:
                if "does not exist; pass the data directory" not in str(error):
                    answers.faults.append(f"round {number}: {error}")

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        kill_round(folder, number, answers, "--sync", sync)
    finally:
        is_over.set()
        keeper.join()


def converged(kills: int) -> list[str]:
    """What is wrong with the end that teams come to, or with their way there."""
    with TemporaryDirectory() as calm, TemporaryDirectory() as killed:
        wanted, found = end_of(Path(calm), 0), end_of(Path(killed), kills)
        faults = faults_of(Path(killed))
    tell(f"{kills} kills under teams that preempt: {len(faults)} faults")
    return [*faults, *([] if sorted(wanted.values()) == sorted(found.values()) else [f"{found} is not {wanted}"])]


def tell(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
