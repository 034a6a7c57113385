"""Put on PYTHONPATH of a process that must not need a network: sockets of any network, and their clients, are errors."""

import sys

CLIENTS = ("openai", "httpx", "requests", "huggingface_hub.inference", "agentcompile.advice.client")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
        address = arguments[1] if event != "socket.getaddrinfo" else arguments[0]
        if not isinstance(address, (str, bytes)) or event == "socket.getaddrinfo":
            raise RuntimeError(f"{event}: {address!r}: this process has no network")
    if event == "import" and str(arguments[0]).startswith(CLIENTS[:1]):
        raise RuntimeError(f"import of {arguments[0]}: this process has no adviser")


sys.addaudithook(_refuse)
