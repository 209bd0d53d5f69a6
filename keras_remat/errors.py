"""What keras_remat raises: every message states the rule, what was received and the next step."""


class RematError(Exception):
    """A block cannot be recomputed exactly, or a call of keras_remat makes no sense."""


class UnsupportedFamilyError(RematError, TypeError):
    """The object is not a layer or model of a Keras that keras_remat supports."""


class BudgetError(RematError, ValueError):
    """No plan fits the memory budget; `smallest` is the least budget in bytes that does."""

    def __init__(self, message, smallest):
        super().__init__(message)
        self.smallest = smallest


class RecomputeMismatchError(RematError, RuntimeError):
    """The second run of a block did not repeat the first; the message names layer and tensor."""
