"""The exceptions that a user's mistake raises."""


class UserError(Exception):
    """A mistake in a recipe, a file or a command; the message says what, where and what to do."""


def not_a_number(model: str) -> str:
    """Return the message for a model whose probabilities are NaN."""
    return (
        f"{model} gives probabilities that are not numbers (NaN): its weights are damaged, or its "
        "training has diverged; take another checkpoint"
    )


class SharedError(UserError):
    """One that all processes of a command raise alike, so that one of them reports it."""


class UnfinishedError(UserError):
    """What stopped the work is not in its input: what is done stays, and is gone on with."""
