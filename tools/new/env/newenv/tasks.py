"""The tasks of newenv: each is an instruction, and all that the desktop needs to set it up."""

from arpo.types import Task


def newenv_tasks(count: int, seed: int = 0) -> list[Task]:
    """Return `count` tasks with an id each; the same for the same arguments."""
    return [
        Task(id=f"newenv/{number}", instruction="click the square", domain="newenv", config={"seed": number})
        for number in range(seed, seed + count)
    ]
