"""Keeps Spark usable after an interrupt: a connection to Java with an answer that nobody read is not used again."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any


@cache
def close_interrupted_connections() -> None:
    """Once in a process: let py4j close a connection whose command was interrupted.

    py4j has one connection per thread. It keeps a connection whose reading was interrupted as long as the traceback
    lives, in a notebook until the next error. Every later command then receives the answer to the one before it.
    """
    from py4j.clientserver import ClientServerConnection

    send = ClientServerConnection.send_command

    @wraps(send)
    def send_command(self: Any, command: str) -> Any:
        try:
            return send(self, command)
        except Exception:
            raise  # py4j's own errors leave no answer behind, or close the connection
        except BaseException:
            self.close(reset=True)
            raise

    ClientServerConnection.send_command = send_command
