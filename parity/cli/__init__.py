"""The command line: imports nothing heavy, and no command before it is asked for, so that `--help` is quick."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import parity
from parity.cli.verbs import GROUPS, Verbs
from parity.endings import ENDING
from parity.errors import Inconclusive, ParityError
from parity.plain import echo, unread
from parity.progress import print_notes


class CommandGroup(click.Group):
    """Lists commands by what they are for, in the order of use; refuses an empty name for whatever takes it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list for each group."""
        width = max(map(len, self.commands))
        for title, members in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb.name:{width}}", verb.about) for verb in members])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, once no argument is empty: no command takes one, and an unset variable leaves one.

        Raises:
            UsageError: one is; which.
        """
        for before, word in zip(["", *args], args, strict=False):
            option, equals, value = word.partition("=") if word.startswith("-") else (before, "=", word)
            if equals and not value.strip():
                what = option if option.startswith("-") else "an argument"
                raise click.UsageError(f"{what} is empty: name something, or leave it out", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, which returns 0 for an `Exit(0)` wherever it came from.

        Ours are those of `--help`, before a command runs.

        Raises:
            Inconclusive: one came out of a running command.
        """
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit as ended:
            if any(
                frame.f_code is click.Context.invoke.__code__ for frame, _ in traceback.walk_tb(ended.__traceback__)
            ):
                raise _foreign(_ender(ended)) from ended
            raise
        except BrokenPipeError:
            raise _unread() from None

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        """As click does, which ends with 1 where nobody reads its help.

        Raises:
            Exit: nobody does: the code that a shell gives a process which a closed pipe ended.
        """
        try:
            return super().make_context(*given, **options)
        except BrokenPipeError:
            raise _unread() from None


def _version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        echo(f"parity, version {parity.__version__}")
        context.exit()


@click.group(cls=CommandGroup, commands=Verbs(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def cli() -> None:
    """Golden tensors, comparison and gates for speculative decoding on accelerators.

    A reference says what is true, the device says what it got, and parity says where the two first
    part, why, and whether that matters.

    First steps: `parity demo`; then `dump-golden`, `diff`, `diagnose`, `gate`, `nightly`.

    Exit codes: 0 pass, 1 a gate failed, 2 wrong usage or unreadable input, 3 inconclusive.
    """
    print_notes()


PRINTING = (__name__, "click.utils", "rich.console")
"""Modules that write to standard output and flush it."""


def main() -> None:
    """Entry point: `command` in a child process, see `parity.cli.supervised`."""
    from parity.cli.supervised import supervise

    supervise(command)


def command() -> int:
    """Run the command line in this process: one sentence for every error, and the design's exit codes."""
    gc.set_threshold(100_000, 20, 20)  # imports and a small comparison make no garbage worth 5 % of their time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins takes 20 ms, there are none
    if sys.stdout is None:
        return _end(
            "standard output is closed, and a result nobody could have seen is none: send it to /dev/null instead", 2
        )
    try:
        code = _code()
        _flush()
        return code
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        number = getattr(error.__cause__ or error, "number", None)
        signalled = number if isinstance(number, int) and number in ENDING else int(signal.SIGINT)
        return _end("interrupted; nothing was left half-written", 128 + signalled)
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message(), err=True)
        return 2  # a script whose command is an unset variable has not passed
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        return _end(error.format_message() + (f" ({where.command_path} --help)" if where else ""), 2)
    except ParityError as error:
        return _end(str(error), 3 if error.exit_code == 3 else 2, error)
    except OSError as error:
        return _end(_of_a_file(error), 2, error)
    except Exception as error:
        return _end(f"internal error: {type(error).__name__}: {error} (`parity --debug …` shows where)", 2, error)


def _code() -> int:
    """The exit code of a command, which ends by `sys.exit` or without.

    Raises:
        Inconclusive: something else than a command ended it: code of a device that no verb was called for.
    """
    try:
        return cli.main(standalone_mode=False) or 0
    except SystemExit as ended:
        if not (at := _ender(ended)).startswith(f"{Path(__file__).parent}{os.sep}"):
            raise _foreign(at) from ended
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 2


def _unread() -> click.exceptions.Exit:
    unread()
    return click.exceptions.Exit(128 + signal.SIGPIPE)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        unread()


def _of_a_file(error: OSError) -> str:
    """Which file an error is of, and what happened; of standard output where it was raised in what prints."""
    said = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {said}"
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_globals.get("__name__") in PRINTING:
        return f"standard output: {said}"
    if error.errno == errno.ENOENT and not _here():
        return "the folder that this command was started in is not there any more"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{said}: `ulimit -n` shows how many this process may have"
    return f"{said}, in a file without a name (`parity --debug …` shows where)"


def _here() -> bool:
    """Whether the working directory exists."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _ender(ended: BaseException) -> str:
    """`file:line` that raised it, or had click raise it."""
    within = f"{Path(click.__file__).parent}{os.sep}"
    by = [one for one in traceback.extract_tb(ended.__traceback__) if not one.filename.startswith(within)][-1]
    return f"{by.filename}:{by.lineno}"


def _foreign(at: str) -> Inconclusive:
    return Inconclusive(f"code of a device ended the process ({at})")


def _end(sentence: str, code: int, error: Exception | None = None) -> int:
    """Say it; with --debug the error's traceback as well."""
    if error is not None and "--debug" in sys.argv[1:]:
        traceback.print_exception(error)
    with suppress(OSError):  # a full disk, a pipe that nobody reads: the code says enough
        echo(f"parity: {' '.join(sentence.split())}", err=True)
    return code
