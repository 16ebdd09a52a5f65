"""``leakscope serve``: campaigns in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakscope.cli.console import notice, say

__all__ = ["serve"]


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a campaign, or one above several.", show_default=False)
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8421,
    host: Annotated[str, typer.Option(help="Address to listen on; by default this machine alone.")] = "127.0.0.1",
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Follow campaigns below DIR in a browser, while they run and after. Ctrl-C ends it.

    It only reads, and only this machine can reach it unless --host says otherwise.
    """
    from leakscope.report.serve import is_loopback, make_server

    with make_server(folder, host, port) as server:
        if not is_loopback(host):
            notice(f"Anyone who can reach {host} can see the private images in '{folder}'. There is no password.")
        say(f"{server.url}  (Ctrl-C ends it)")
        if show:
            typer.launch(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("Stopped.")
