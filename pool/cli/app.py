"""The root of the command: its table of commands, its options, its exit codes.

The root is plain Python and each command is a Typer app in a module of its own, named in `COMMANDS` together with its
line of help. So the help, a misspelt command and `--version` import neither Typer nor anything of the pool's, and a
command costs only what it needs itself.

Exit codes: 0 done, 1 it could not be done, 2 the command line or the configuration is wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pool.errors import ConfigInvalid, PoolError

if TYPE_CHECKING:
    import typer

    from pool.settings import Settings

# name: (module:attribute of a Typer app made by `new_app`, its line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("pool.cli.up:app", "run the whole pool on this machine, until Ctrl-C"),
    "status": ("pool.cli.status:status_app", "what the pool looks like now"),
    "acquire": ("pool.cli.claims:acquire_app", "get a worker, and run a command with it"),
    "release": ("pool.cli.claims:release_app", "give a worker back"),
    "events": ("pool.cli.status:events_app", "what happened to workers, from the journal"),
    "top": ("pool.cli.top:app", "the fleet live: sort, filter, look into one"),
    "board": ("pool.cli.board:app", "serve the board, a web page that shows the fleet live"),
    "get": ("pool.cli.getting:get_app", "list workers, claims, requests, orgs, profiles or passes"),
    "explain": (
        "pool.cli.getting:explain_app",
        "why a worker went, whether it can be claimed; why a request waits",
    ),
    "drain": ("pool.cli.draining:app", "take a worker, or those of a node, org or profile, out of use"),
    "profile": ("pool.cli.draining:profile_app", "list profiles, say how many workers to keep warm"),
    "doctor": ("pool.cli.doctor:app", "look for what is wrong with the installation, and mend it"),
    "completion": ("pool.cli.completion:app", "print the shell's completion script"),
    "org": ("pool.cli.orgs:app", "list orgs, change their caps, weights, floors and TTLs"),
    "passes": ("pool.cli.passes:list_app", "the passes with their age, holder and last result"),
    "pass": ("pool.cli.passes:app", "run, pause or resume one pass"),
    "pause": ("pool.cli.passes:pause_app", "stop handing out workers"),
    "resume": ("pool.cli.passes:resume_app", "hand out workers again"),
    "config": ("pool.cli.config:app", "check the configuration, show it, print an example"),
    "worker": ("pool.cli.components:worker_app", "run one Celery worker: acquire, fleet, bind or passes"),
    "beat": ("pool.cli.components:beat_app", "run beat, which sends the passes their ticks"),
    "flower": ("pool.cli.components:flower_app", "run Flower, which shows workers, queues and tasks"),
    "exporter": ("pool.cli.metrics:exporter_app", "serve what the table says to Prometheus"),
    "simulate": ("pool.cli.simulate:app", "try warm targets, TTLs and caps on a trace, in virtual time"),
    "metrics": ("pool.cli.metrics:app", "list the metrics, print the dashboard"),
    "migrate": ("pool.cli.components:migrate_app", "bring the database to the newest schema"),
}

_HELP = """\
Usage: warmpool [--config FILE] COMMAND ...

Keeps workers warm and hands one to any service in milliseconds.

Commands:
{commands}

Options:
  --config FILE  the configuration; else WARMPOOL_CONFIG, else ./warmpool.toml, else defaults
  --version      print the version
  --help         print this; after a command, print that command's help
"""


class UsageError(PoolError):
    """The command line says nothing that we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line, taken apart: `--config` may stand anywhere before a `--`."""

    config: Path | None
    words: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Line:
        """Take `--config` out; what is left belongs to the command."""
        config, words, rest = None, [], list(argv)
        while rest and rest[0] != "--":
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if name != "--config":
                words.append(word)
                continue
            if not equals and not rest:
                raise UsageError("--config takes the path of a file")
            config = Path(value if equals else rest.pop(0))
        return cls(config=config, words=(*words, *rest))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit."""
    try:
        code = _run(Line.parse(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except ConfigInvalid as exc:
        code = _fail(*exc.findings, code=2)
    except UsageError as exc:
        code = _fail(str(exc), "try `warmpool --help`", code=2)
    except BrokenPipeError:
        # Who read our output has gone; nothing more may be written, not even by the interpreter's own flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as exc:
        code = _fail(f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc), code=1)
    except PoolError as exc:
        code = _fail(" ".join(str(exc).split()), code=1)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def new_app(summary: str) -> typer.Typer:
    """An app for a command's module: plain help and plain errors, the same for every command."""
    import typer

    return typer.Typer(
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def settings_of(context: typer.Context) -> Settings:
    """The settings that this command line asks for."""
    from pool import config

    return config.load(config_path(context))


def config_path(context: typer.Context) -> Path | None:
    """The file that this command line names."""
    line = context.find_object(Line)
    return line.config if line else None


def _run(line: Line) -> int:
    first = line.words[0] if line.words else "--help"
    if first in {"--help", "-h"}:
        print(_help(), end="")
        return 0
    if first in {"--version", "-V"}:
        print(f"warmpool {_version()}")
        return 0
    if first not in COMMANDS:
        raise UsageError(_unknown(first))
    return _invoke(first, line)


def _invoke(name: str, line: Line) -> int:
    """Hand the rest of the line to a command. Typer exits by itself for help and for usage errors."""
    import importlib

    module, _, attribute = COMMANDS[name][0].partition(":")
    try:
        app = getattr(importlib.import_module(module), attribute)
        from typer.main import get_command
    except ModuleNotFoundError as exc:
        if (exc.name or "pool").partition(".")[0] == "pool":
            raise
        raise PoolError(f"`warmpool {name}` needs {exc.name}: pip install 'warmpool[embedded]'") from exc
    try:
        get_command(app).main(args=list(line.words[1:]), prog_name=f"warmpool {name}", obj=line)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1 if exc.code else 0
    return 0


def _help() -> str:
    width = max(map(len, COMMANDS))
    return _HELP.format(
        commands="\n".join(f"  {name:{width}}  {text}" for name, (_, text) in sorted(COMMANDS.items()))
    )


def _unknown(word: str) -> str:
    import difflib

    kind = "option" if word.startswith("-") else "command"
    close = difflib.get_close_matches(word, [*COMMANDS, "--help", "--version", "--config"], n=1)
    return f"no such {kind}: {word}" + (f"; did you mean {close[0]}?" if close else "")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("warmpool")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(*sentences: str, code: int) -> int:
    for sentence in sentences:
        print(f"warmpool: {sentence}", file=sys.stderr)
    return code
