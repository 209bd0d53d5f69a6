"""Which layers a user means: names, regular expressions, classes and predicates."""

import re

from keras_remat.errors import RematError


def matcher(choice, argument):
    """Turn what chooses layers into a predicate."""
    if isinstance(choice, (list, tuple)):
        predicates = [matcher(c, argument) for c in choice]
        return lambda layer: any(p(layer) for p in predicates)
    if isinstance(choice, type):
        return lambda layer: isinstance(layer, choice)
    if isinstance(choice, str) or hasattr(choice, "fullmatch"):
        pattern = _pattern(choice, argument)
        return lambda layer: pattern.fullmatch(layer.name) is not None
    if callable(choice):
        return choice
    raise RematError(
        f"`{argument}` must be a name, a regular expression, a class, a predicate or a list of these. "
        f"Received: {argument}={choice!r}. Name the layers, for example."
    )


def _pattern(choice, argument):
    try:
        return re.compile(choice)
    except re.error as error:
        raise RematError(
            f"`{argument}` must be a name or a regular expression. Received: {argument}={choice!r} "
            f"({error}). Escape what stands for itself."
        ) from error
