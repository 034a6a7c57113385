"""On the PYTHONPATH of a process that must not need a network or an adviser: using either is an error."""

import sys


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and str(arguments[0]).partition(".")[0] == "openai":
        raise RuntimeError(f"import of {arguments[0]}: this process has no adviser")
    if event == "socket.getaddrinfo" or (
        event in ("socket.connect", "socket.bind") and isinstance(arguments[1], tuple)
    ):
        raise RuntimeError(f"{event}: {arguments[1]!r}: this process has no network")


sys.addaudithook(_refuse)
