"""`warmpool completion`: completion for bash, zsh and fish. The script calls `warmpool` itself, so it is
never outdated."""

from __future__ import annotations

import importlib
import inspect
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer

from pool.ops.cli.app import COMMANDS, new_app

app = new_app("Print the completion script for a shell.")

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
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("script")
def script(shell: Annotated[Shell, typer.Argument(help="Shell to print the script for.")]) -> None:
    """Print the completion script. For bash, add to ~/.bashrc: source <(warmpool completion script bash)"""
    print(_SCRIPTS[shell], end="")


@app.command("words", hidden=True, context_settings={"ignore_unknown_options": True})
def words(line: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print the candidates for the last word of a command line."""
    *before, last = line or [""]
    print("\n".join(candidates(before, last)))


def candidates(before: list[str], last: str) -> list[str]:
    """Return candidates for the last word: commands, or the options and values of the command before it."""
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
    """Return values of the option before the last word, or option names, or values of the next argument."""
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
    """Return the values of a parameter whose annotation is or contains an enum."""
    hint = get_type_hints(inspect.unwrap(command.callback)).get(name)
    inside = [hint, *get_args(hint), *(a for part in get_args(hint) for a in get_args(part))]
    kinds = [kind for kind in inside if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return sorted(str(c) for kind in kinds for c in kind if str(c).startswith(last))
