"""Tasks with the calculator, whose results go to the clipboard; of many keys at once it may lose some."""

from arpo.envs.desktop.templates.template import Draw, Home, Instance, templates_of

CLIPBOARD = "timeout 5 python3 -c 'import tkinter; print(tkinter.Tk().clipboard_get())'"
COPY = "hotkey(key='ctrl c')"


def copy_a_result(draw: Draw) -> Instance:
    """Compute with two numbers."""
    first, second = draw.randrange(12, 1000), draw.randrange(12, 100)
    words, sign, value = draw.choice(
        (
            ("{} plus {}", "+", first + second),
            ("{} minus {}", "-", first - second),
            ("{} times {}", "*", first * second),
        )
    )
    wrong = "-" if sign == "+" else "+"
    ask = draw.choice(("Compute {} and copy the result.", "How much is {}? Copy the result to the clipboard."))
    return _instance(
        ask.format(words.format(first, second)), value, f"{first}{sign}{second}", f"{first}{wrong}{second}"
    )


TEMPLATES = templates_of(__name__, (copy_a_result,))


def _instance(instruction: str, value: int, keys: str, wrong: str) -> Instance:
    def done(home: Home) -> bool:
        return home.output(CLIPBOARD).strip() == str(value)

    def typing(what: str) -> tuple[str, ...]:
        return (f"type(content='{what}')", "hotkey(key='enter')")

    return Instance(
        instruction,
        launch=("galculator",),
        window="galculator",
        done=done,
        solution=(*typing(keys), COPY),
        near_misses={"not copied": typing(keys), "another sum": (*typing(wrong), COPY)},
    )
