"""Page of the commands and their options, generated from the argument parser."""

from __future__ import annotations

import argparse

from docs_pages.docstrings import escaped

from seq2seq.cli.arguments import make_parser

_INTRODUCTION = """\
# Commands

Results go to standard output, messages to standard error. Defaults are in parentheses.
`seq2seq --version` prints the version; every command has `--help`.
"""


def page() -> str:
    """Return the page in Markdown."""
    lines = [_INTRODUCTION]
    for name, parser in commands().items():
        positionals = [_placeholder(action) for action in parser._get_positional_actions()]
        line = " ".join(["seq2seq", name, *positionals, "[OPTIONS]"])
        lines.append(f"## {name}\n\n`{line}`\n\n{_sentence(parser.description)}\n")
        for group in parser._action_groups:
            actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
            if actions and group.title not in ("positional arguments", "options"):
                lines.append(f"### {str(group.title).capitalize()} {{#{name}-{_id(group)}}}\n")
                lines += [f"{_sentence(group.description)}\n"] if group.description else []
            lines += [_entry(name, action) for action in actions if action.help]
    return "\n".join(lines)


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers by command."""
    [subparsers] = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return dict(subparsers.choices)


def _entry(command: str, action: argparse.Action) -> str:
    options = ", ".join(f"`{option}`" for option in action.option_strings)
    metavar = "" if action.nargs == 0 else _placeholder(action)
    anchor = f"{{#{command}{action.option_strings[-1]}}}" if options else ""
    term = " ".join(filter(None, [options, f"`{metavar}`" if metavar else ""]))
    help_text = (action.help or "") % {"default": action.default, "prog": "seq2seq"}
    return f"{term}{anchor}\n:   {escaped(help_text)}\n"


def _placeholder(action: argparse.Action) -> str:
    """Return the placeholder for the values of an argument, as in a usage line."""
    if action.choices and action.metavar is None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    elif isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    else:
        name = action.metavar or action.dest.upper()
    return {"*": f"[{name} ...]", "+": f"{name} [{name} ...]", "?": f"[{name}]"}.get(
        str(action.nargs), name
    )


def _sentence(text: str | None) -> str:
    return f"{escaped(text[0].upper() + text[1:])}." if text else ""


def _id(group: argparse._ArgumentGroup) -> str:
    return str(group.title).replace(" ", "-")
