"""Exceptions for user errors."""


class UserError(Exception):
    """An error in a recipe, a file or a command; the message says what, where and what to do."""


def not_a_number(model: str) -> str:
    """Return the message for a model whose probabilities are NaN."""
    return (
        f"{model} predicts NaN probabilities: its weights are damaged or its training has "
        "diverged; use another checkpoint"
    )


class SharedError(UserError):
    """A user error that every process raises, so only one of them reports it."""


class UnfinishedError(UserError):
    """An interruption that the input did not cause: finished work is kept and resumed."""
