"""The tasks: a module each, with the name that the key `task` of a recipe has."""
