"""The actions of a phone, beside clicks and texts: gestures of a finger, apps, and the buttons of the system."""

from dataclasses import dataclass

from typing_extensions import override

from arpo.agent.actions import Action, Drag, Pointing, quote


class Swipe(Drag):
    """A quick move of a finger from one point to another."""

    NAME = "swipe"


@dataclass(frozen=True, slots=True)
class LongPress(Pointing):
    """A touch that is held."""

    NAME = "long_press"
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class OpenApp(Action):
    """The start of an app by its name, wherever its icon is."""

    NAME = "open_app"
    app: str

    @override
    def written(self) -> dict[str, str]:
        return {"app_name": quote(self.app)}


class Back(Action):
    """The button that leads to the screen before."""

    NAME = "press_back"


class Home(Action):
    """The button that leads to the home screen."""

    NAME = "press_home"
