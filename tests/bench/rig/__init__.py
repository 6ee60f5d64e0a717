"""What compare.py and callgrind_budget.py are made of; see ../README.md."""


class RigError(Exception):
    """The rig itself failed; the text is one line for the person who started it."""
