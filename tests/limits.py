"""What a Keras cannot do, and why: the one table of strict expected failures.

The compatibility page of the documentation is made from it. A reason names the limit of TensorFlow or
Keras itself; a fault of ours is repaired instead.
"""

import fnmatch
from typing import NamedTuple, Tuple


class Limit(NamedTuple):
    """Tests that cannot pass: a pattern of test names, where, and the reason."""

    tests: str
    targets: Tuple[str, ...]
    reason: str
    versions: Tuple[Tuple[int, int], Tuple[int, int]] = ((1, 14), (9, 0))

    def covers(self, test, target):
        """True if the limit holds for a test, `module.py::name[...]`, of a target."""
        first, last = self.versions
        return (
            target.name in self.targets
            and first <= target.version <= last
            and fnmatch.fnmatchcase(test, self.tests)
        )


ALL = ("keras", "tf.keras", "tf.keras-eager", "tf_keras")

LIMITS = ()


def limit_of(test, target):
    """The first limit that covers a test, or None."""
    return next((limit for limit in LIMITS if limit.covers(test, target)), None)
