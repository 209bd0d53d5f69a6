"""The least work of many problems at once, each as a function of the memory that it may take.

The function falls in steps, and a solver asks for it at amounts that it cannot foresee. Each problem has
slots of its own, from the least memory that it can do with to the most that it can use. Between two slots a
straight line is read: rounding down, as is usual, adds up over the segments of a plan, which then repeats
more than it must. A plan stays possible, since the least memory decides what is, and that is exact.
"""

import numpy as np


class Slots:
    """Work for amounts of memory between `least` and `most` (arrays of one shape), unknown at first.

    Example: a problem that takes 10 bytes and 4 units of work, or 14 bytes and none.
        >>> slots = Slots(np.array([10]), np.array([14]), 3)
        >>> slots.rooms(0).tolist()
        [10, 12, 14]
        >>> slots.work[0] = [4, 2, 0]
        >>> slots.read(np.array([0]), np.array([9, 10, 11, 99])).tolist()
        [inf, 4.0, 3.0, 0.0]
    """

    def __init__(self, least, most, count):
        self.least = least
        self.step = np.maximum(1, -(-(most - least) // (count - 1)))
        self.work = np.zeros(least.shape + (count,))

    def rooms(self, index):
        """The amounts of memory of a problem's slots."""
        return self.least[index] + self.step[index] * np.arange(self.work.shape[-1])

    def read(self, index, room):
        """The work of the problems at `index` (a tuple, where there are several axes) within `room` bytes."""
        index = index if isinstance(index, tuple) else (index,)
        above, step, last = room - self.least[index], self.step[index], self.work.shape[-1] - 1
        slot, rest = np.divmod(np.maximum(above, 0), step)
        lower = self.work[index + (np.minimum(slot, last),)]
        upper = self.work[index + (np.minimum(slot + 1, last),)]
        return np.where(above < 0, np.inf, lower + (upper - lower) * (rest / step))
