"""`warmpool completion`: completion for bash, zsh and fish. The script asks the command itself, so it never grows old."""

from __future__ import annotations

import importlib
import inspect
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer

from pool.cli.app import COMMANDS, new_app

app = new_app("Print the shell's completion script, or what completes a line.")

_SCRIPTS = {
    "bash": """_warmpool() {
  local IFS=$'\\n'
  COMPREPLY=($(warmpool completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _warmpool warmpool
""",
    "zsh": """#compdef warmpool
_warmpool() {
  local -a found
  found=("${(@f)$(warmpool completion words -- "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  compadd -- $found
}
compdef _warmpool warmpool
""",
    "fish": """complete -c warmpool -f -a '(warmpool completion words -- (commandline -opc)[2..] (commandline -ct))'
""",
}


class Shell(StrEnum):
    """What can be completed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("script")
def script(shell: Annotated[Shell, typer.Argument(help="For which shell.")]) -> None:
    """Print the script. For bash, in ~/.bashrc: source <(warmpool completion script bash)"""
    print(_SCRIPTS[shell], end="")


@app.command("words", hidden=True, context_settings={"ignore_unknown_options": True})
def words(line: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """What may stand in place of the last word."""
    *before, last = line or [""]
    print("\n".join(candidates(before, last)))


def candidates(before: list[str], last: str) -> list[str]:
    """Commands first; after a command, what its own parser knows."""
    if not before:
        known = [*COMMANDS, "--help", "--version", "--config"]
        return sorted(name for name in known if name.startswith(last))
    name, *rest = before
    if name not in COMMANDS:
        return []
    from typer.main import get_command

    module, _, attribute = COMMANDS[name][0].partition(":")
    command: Any = get_command(getattr(importlib.import_module(module), attribute))
    if (inner := getattr(command, "commands", None)) is not None:
        if not rest:
            return sorted(c for c, made in inner.items() if c.startswith(last) and not made.hidden)
        command = inner.get(rest[0])
        rest = rest[1:]
    return [] if command is None else _of(command, rest, last)


def _of(command: Any, rest: list[str], last: str) -> list[str]:
    """The values of the option that stands before, or the options, or the values of the argument whose turn it is."""
    options = {o: p for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
    awaited = options.get(rest[-1]) if rest else None
    if awaited is not None and not awaited.is_flag:
        return _choices(command, awaited.name, last)
    if last.startswith("-"):
        return sorted(o for o in [*options, "--help"] if o.startswith(last))
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    given = sum(not word.startswith("-") for word in rest)
    return _choices(command, arguments[min(given, len(arguments) - 1)].name, last) if arguments else []


def _choices(command: Any, name: str, last: str) -> list[str]:
    """What a parameter takes, if that is a list: its annotation says so, as an enum, alone or inside of something."""
    hint = get_type_hints(inspect.unwrap(command.callback)).get(name)
    inside = [hint, *get_args(hint), *(a for part in get_args(hint) for a in get_args(part))]
    kinds = [kind for kind in inside if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return sorted(str(c) for kind in kinds for c in kind if str(c).startswith(last))
