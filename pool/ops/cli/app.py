"""The root of the `warmpool` command: its table of commands, global options and exit codes.

The root is plain Python. Each command is a Typer app in its own module, listed in `COMMANDS` with
one line of help. So `--help`, `--version` and a misspelt command do not import Typer or the rest of
the pool, and each command imports only what it needs.

Exit codes: 0 success, 1 failure, 2 invalid command line or configuration, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pool.core.errors import ConfigInvalid, PoolError

if TYPE_CHECKING:
    import typer

    from pool.core.settings import Settings

# name: (module:attribute of a Typer app made by `new_app`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("pool.ops.cli.up:app", "run the whole pool on this machine until Ctrl-C"),
    "status": ("pool.ops.cli.status:status_app", "show the current state of the pool and its problems"),
    "acquire": ("pool.ops.cli.claims:acquire_app", "acquire a worker, and run a command while holding it"),
    "release": ("pool.ops.cli.claims:release_app", "release a claim"),
    "events": ("pool.ops.cli.status:events_app", "show the journal: every state change of workers"),
    "top": ("pool.ops.cli.top:app", "show live workers in the terminal; sort, filter, explain one"),
    "board": ("pool.ops.cli.board:app", "serve the board, a live web page of the fleet"),
    "get": ("pool.ops.cli.getting:get_app", "list workers, claims, requests, orgs, profiles or passes"),
    "explain": (
        "pool.ops.cli.getting:explain_app",
        "explain why a worker ended, or why a request waits",
    ),
    "drain": (
        "pool.ops.cli.draining:app",
        "drain one worker, or all workers of a node, org or profile",
    ),
    "profile": ("pool.ops.cli.draining:profile_app", "list profiles, set how many workers to keep warm"),
    "orphan": ("pool.ops.cli.orphans:app", "list orphaned pods that are kept, delete one that is silent"),
    "doctor": ("pool.ops.cli.doctor:app", "check the installation for problems, and repair them"),
    "completion": ("pool.ops.cli.completion:app", "print the completion script for a shell"),
    "org": ("pool.ops.cli.orgs:app", "list orgs; change caps, weights, floors, TTLs and keys"),
    "passes": ("pool.ops.cli.passes:list_app", "list the passes with age, holder and last result"),
    "pass": ("pool.ops.cli.passes:app", "run, pause or resume one pass"),
    "pause": ("pool.ops.cli.passes:pause_app", "pause the pool: refuse every acquire"),
    "resume": ("pool.ops.cli.passes:resume_app", "resume the pool: grant acquires again"),
    "config": ("pool.ops.cli.config:app", "check or show the configuration, print an example"),
    "worker": (
        "pool.ops.cli.components:worker_app",
        "run one Celery worker: acquire, fleet, bind or passes; check a worker of your own",
    ),
    "worker-proxy": ("pool.ops.cli.own_worker:proxy_app", "run an HTTP program as a worker of the pool"),
    "beat": ("pool.ops.cli.components:beat_app", "run beat, the scheduler of the passes"),
    "flower": ("pool.ops.cli.components:flower_app", "run Flower, the monitor of Celery workers and tasks"),
    "exporter": ("pool.ops.cli.metrics:exporter_app", "serve metrics of the database to Prometheus"),
    "simulate": ("pool.ops.cli.simulate:app", "try warm targets, TTLs and caps on a demand trace"),
    "metrics": ("pool.ops.cli.metrics:app", "list the metrics, print the Grafana dashboard"),
    "migrate": ("pool.ops.cli.components:migrate_app", "upgrade the database to the newest schema"),
}

_HELP = """\
Usage: warmpool [--config FILE] COMMAND ...

Keep worker pods warm and hand them out in milliseconds.

Commands:
{commands}

Options:
  --config FILE  configuration file; default: WARMPOOL_CONFIG, then ./warmpool.toml, then built-in defaults
  --version      print the version
  --help         print this help; after a command, print the help of that command
"""


class UsageError(PoolError):
    """The command line is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpLine:
    """A parsed command line. `--config` is accepted anywhere before a `--`."""

    config: Path | None
    words: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> HelpLine:
        """Extract `--config`; the remaining words belong to the command."""
        config, words, rest = None, [], list(argv)
        while rest and rest[0] != "--":
            word = rest.pop(0)
            name, equals, value = word.partition("=")
            if name != "--config":
                words.append(word)
                continue
            if not equals and not rest:
                raise UsageError("--config needs a value: the path of a configuration file")
            config = Path(value if equals else rest.pop(0))
        return cls(config=config, words=(*words, *rest))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit."""
    try:
        code = _run(HelpLine.parse(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except ConfigInvalid as exc:
        code = _fail(*exc.findings, code=2)
    except UsageError as exc:
        code = _fail(str(exc), "see `warmpool --help`", code=2)
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Even the interpreter's own flush at exit must not
        # write to it.
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
    """Return a Typer app with plain help and plain errors, the same for every command."""
    import typer

    return typer.Typer(
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def settings_of(context: typer.Context) -> Settings:
    """Load the settings for this command line."""
    from pool import config

    return config.load(config_path(context))


def config_path(context: typer.Context) -> Path | None:
    """Return the file given with `--config`, or None."""
    line = context.find_object(HelpLine)
    return line.config if line else None


def _run(line: HelpLine) -> int:
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


def _invoke(name: str, line: HelpLine) -> int:
    """Run a command with the rest of the line and return its exit code. Typer raises SystemExit for help and
    usage errors."""
    import importlib

    module, _, attribute = COMMANDS[name][0].partition(":")
    try:
        app = getattr(importlib.import_module(module), attribute)
        from typer.main import get_command
    except ModuleNotFoundError as exc:
        if (exc.name or "pool").partition(".")[0] == "pool":
            raise
        raise PoolError(
            f"`warmpool {name}` needs the Python package {exc.name}, which is not installed: "
            "pip install 'warmpool-server[embedded]'"
        ) from exc
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
        return version("warmpool-server")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(*sentences: str, code: int) -> int:
    for sentence in sentences:
        print(f"warmpool: {sentence}", file=sys.stderr)
    return code
