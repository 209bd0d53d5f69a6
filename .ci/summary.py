"""One line for each session of the last matrix, then `N passed, N failed`.

Fails when a session failed, a cell of the table did not run, or the compatibility page is out of date.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cells import CELLS, ENVIRONMENTS
from compatibility import read_cases

CI = Path(__file__).resolve().parent
RESULTS = CI.parent / ".envs" / "results"


def read_reports():
    """{session: (passed, seconds)} of both reports of nox, without those that only install."""
    sessions = {cell.name: (False, 0.0) for cell in CELLS}  # until a report says otherwise
    for path in (RESULTS / "test.json", RESULTS / "rest.json"):
        if not path.exists():
            sessions[f"{path.stem} ended early"] = (False, 0.0)
            continue
        for one in json.loads(path.read_text("utf-8"))["sessions"]:
            sessions[one["name"]] = (one["result"] == "success", one["duration"] or 0.0)
    for environment in ENVIRONMENTS:
        sessions.pop(environment.name, None)
    return sessions


def count_tests(session):
    """How many tests of a cell passed, failed or met a limit; empty for other sessions."""
    path = RESULTS / f"{session}.xml"
    if not path.exists():
        return ""
    counts = Counter(outcome for _, outcome, _ in read_cases(path))
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def main():
    sessions = read_reports()
    check = subprocess.run([sys.executable, str(CI / "compatibility.py"), "--check"])
    sessions["compatibility page"] = (check.returncode == 0, 0.0)
    for name, (passed, seconds) in sessions.items():
        outcome = "passed" if passed else "FAILED"
        print(f"{outcome}  {name:<24} {seconds:6.0f} s  {count_tests(name)}".rstrip())
    failed = sum(not passed for passed, _ in sessions.values())
    print(f"{len(sessions) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
