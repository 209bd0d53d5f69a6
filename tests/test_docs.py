"""Every Python block of README.md and docs/ runs.

The blocks of one page are one program, run in order in a fresh interpreter and an empty folder.
The page is turned into that program by blanking what is not code: lines keep their numbers, so a
traceback points into the page, and AutoGraph finds the source that it needs.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\w*)")

BROKEN_PAGE = """\
Text.

```python
a = 1
```

- A list:

  ```python
  a / 0
  ```

```text
)
```
"""


def program_of(page):
    """The Python blocks of a page, each on its own lines; empty if there are none."""
    lines, fence, is_python = [], None, False
    for line in page.splitlines():
        match = FENCE.match(line)
        if fence is None and match:
            indent, fence, language = match.groups()
            is_python = language == "python"
            line = ""
        elif fence and line.strip() == fence:
            fence, line = None, ""
        elif fence and is_python:
            line = line[len(indent) :]
        else:
            line = ""
        lines.append(line)
    return "\n".join(lines).rstrip()


def run_page(program, folder):
    """Run a page's program in `folder`; its output and exit status."""
    path = folder / "page.py"
    path.write_text(program + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=str(folder),
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def pages():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.exists() and program_of(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT))


@pytest.mark.skipif(find_spec("tf_keras") is None, reason="the pages are written for the newest environment")
@pytest.mark.parametrize("name", list(pages()))
def test_blocks_run(name, tmp_path):
    status, output = run_page(program_of((ROOT / name).read_text(encoding="utf-8")), tmp_path)
    assert status == 0, output


def test_the_check_can_fail(tmp_path):
    status, output = run_page(program_of(BROKEN_PAGE), tmp_path)
    assert status == 1
    assert "line 10" in output and "ZeroDivisionError" in output
