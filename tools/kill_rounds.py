"""Kills a platform under sixteen writers, again and again: `python tools/kill_rounds.py --rounds 200`.

Every write that was answered must be there after the restart, revisions must increase, and a watch that goes on from
its last revision must see each change once. Run it with the project's environment; it ends with 1 if that is not so.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from live.killing import Answers, kill_round, last_look


def main() -> int:
    """Kill and look; tell each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    answers = Answers()
    with TemporaryDirectory() as folder:
        for number in range(args.rounds):
            kill_round(Path(folder), number, answers)
            told = f"{len(answers.acknowledged)} answered, {len(answers.watched)} watched"
            sys.stdout.write(f"round {number + 1}: {told}, {len(answers.faults)} faults\n")
            sys.stdout.flush()
        last_look(Path(folder), answers)
    for fault in answers.faults:
        sys.stdout.write(f"{fault}\n")
    return 1 if answers.faults else 0


if __name__ == "__main__":
    sys.exit(main())
