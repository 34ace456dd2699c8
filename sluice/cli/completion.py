"""`sluice completion`: what a shell reads to complete a command line."""

from __future__ import annotations

import click

from sluice.cli.arguments import command
from sluice.cli.exit import ExitStatus

#: Set by the shell that completes a command line.
COMPLETE = "_SLUICE_COMPLETE"


@command("completion", 'eval "$(sluice completion bash)"')
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print what lets a shell complete commands, options and their values.

    For bash 4.4 or later the example goes into ~/.bashrc; for zsh the same with zsh into ~/.zshrc;
    for fish `sluice completion fish | source` into ~/.config/fish/config.fish.
    """
    from click.shell_completion import shell_complete

    program = click.get_current_context().find_root().command
    shell_complete(program, {}, "sluice", COMPLETE, f"{shell}_source")
    return ExitStatus.DONE
