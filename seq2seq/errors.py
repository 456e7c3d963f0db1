"""The one exception that a user's mistake raises."""


class UserError(Exception):
    """A mistake in a recipe, a file or a command; the message says what, where and what to do."""
