"""The command line: `noria run`, `noria bench`, `noria doctor`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import noria
from noria.cli.values import UsageError

_COMMANDS = {
    "run": "run a model under a budget of device memory",
    "bench": "measure one property, against its bound or against peers",
    "doctor": "say what this machine offers, what was chosen and why",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"noria: {' '.join(message.split())} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command; each command's file adds its own arguments."""
    parser = _Parser(prog="noria", description="Run models larger than device memory.")
    parser.add_argument("--version", action="version", version=f"noria {noria.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, description in _COMMANDS.items():
        module = importlib.import_module(f"noria.cli.{name}")
        command = commands.add_parser(
            name, help=description, description=description[0].upper() + description[1:] + "."
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Status 0: done, 1: the work failed and one line on stderr says what, 2: wrong usage."""
    parsed = build_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        print("noria: interrupted", file=sys.stderr)
        return 130
    except UsageError as error:
        print(f"noria: {error} (see noria {parsed.command} --help)", file=sys.stderr)
        return 2
    except Exception as error:
        if parsed.debug:
            raise
        first = str(error).strip().splitlines()
        print(f"noria: {type(error).__name__}: {first[0] if first else 'no message'}", file=sys.stderr)
        return 1
