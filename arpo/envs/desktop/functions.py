"""The functions of our own desktops: two applications have some. `docker/guest/functions.py` performs them."""

import logging
from collections.abc import Sequence

from arpo.agent.actions import Call
from arpo.agent.functions import Function, refusal
from arpo.envs.guest.client import Guest
from arpo.errors import ConfigError, quoted

log = logging.getLogger(__name__)

FUNCTIONS = (
    Function("mousepad.open", {"path": "str"}, "Open a text file in the editor."),
    Function("mousepad.write", {"path": "str", "text": "str"}, "Make this the whole text of a file."),
    Function(
        "mousepad.replace",
        {"path": "str", "find": "str", "by": "str"},
        "Replace a text by another one wherever a file has it.",
    ),
    Function("pcmanfm.open", {"path": "str"}, "Show a folder in the file manager."),
    Function("pcmanfm.make_folder", {"path": "str"}, "Make a folder."),
    Function("pcmanfm.move", {"path": "str", "to": "str"}, "Move or rename a file or a folder."),
)


def desktop_functions() -> tuple[Function, ...]:
    """Return the functions of a desktop that has some, for the prompt."""
    return FUNCTIONS


def check_functions(guest: Guest, image: str) -> None:
    """Check that a guest has the functions that a prompt names, with these parameters."""
    has, wanted = guest.functions(), {function.name: dict(function.parameters) for function in FUNCTIONS}
    lacking = sorted(name for name, parameters in wanted.items() if has.get(name) != parameters)
    if lacking:
        raise ConfigError(
            f"the desktops of image {image} lack the functions {', '.join(lacking)}: build the image again with "
            "docker/build_image.sh, or choose env=desktop"
        )


def perform(call: Call, functions: Sequence[Function], guest: Guest) -> None:
    """Have a guest perform a call that fits one of the functions; one that is refused, here or there, does nothing."""
    refused = refusal(call, functions)
    if not refused:
        result = guest.call(call.function, call.arguments)
        refused = "" if result.done else result.said or "the guest does not say why"
    if refused:
        log.info("a call was refused: %s", quoted(refused))
