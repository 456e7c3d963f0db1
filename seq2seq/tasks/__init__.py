"""Tasks. Module names are the values of the recipe key `task`."""
