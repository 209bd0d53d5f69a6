"""Every Python block of README.md and docs/ runs.

The blocks of one page are one program, run in order in a fresh interpreter and an empty folder.
The page is turned into that program by blanking what is not code: lines keep their numbers, so a
traceback points into the page, and AutoGraph finds the source that it needs.

Blocks are for TensorFlow. Those below a comment such as `<!-- backend: jax torch -->` are for the frameworks
that it names: the blocks of each are a program.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import targets

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\w*)")
MARKER = re.compile(r"^\s*<!-- backend: (.*) -->")
FRAMEWORKS = ("tensorflow", "jax", "torch")

BROKEN_PAGE = """\
Text.

<!-- backend: jax -->
```python
1 / 0
```

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


def program_of(page, framework):
    """The Python blocks of a page for a framework, each on its own lines; empty if there are none."""
    lines, fence, is_code, wanted = [], None, False, FRAMEWORKS[:1]
    for line in page.splitlines():
        match = FENCE.match(line)
        if fence is None and match:
            indent, fence, language = match.groups()
            is_code = language == "python" and framework in wanted
            line, wanted = "", FRAMEWORKS[:1]
        elif fence is None and MARKER.match(line):
            wanted = MARKER.match(line).group(1).split()
            assert set(wanted) <= set(FRAMEWORKS)
            line = ""
        elif fence and line.strip() == fence:
            fence, line = None, ""
        elif fence and is_code:
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


def programs(framework):
    """The pages that have code for a framework, by their names."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        program = program_of(path.read_text(encoding="utf-8"), framework)
        if program:
            yield pytest.param(program, id=str(path.relative_to(ROOT)))


@pytest.mark.needs("doctests")
@pytest.mark.parametrize("program", programs(targets.current().framework_name))
def test_blocks_run(program, tmp_path):
    status, output = run_page(program, tmp_path)
    assert status == 0, output


def test_the_check_can_fail(tmp_path):
    status, output = run_page(program_of(BROKEN_PAGE, "tensorflow"), tmp_path)
    assert status == 1
    assert "line 15" in output and "ZeroDivisionError" in output
