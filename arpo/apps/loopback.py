"""Pages that are for this machine alone."""

from email.message import Message


def names_this_machine(headers: Message) -> bool:
    """Say whether a request asks for this machine by its own name: another page could have one that leads here."""
    return (headers.get("Host") or "").partition(":")[0] in ("127.0.0.1", "localhost")
