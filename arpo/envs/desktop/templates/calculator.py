"""Tasks with the calculator, whose results go to the clipboard.

A key of Galculator's is pressed for a quarter of a second, and pressed again in that time it does nothing: so no
number has a digit twice, and numbers are typed one by one.
"""

from arpo.envs.desktop.templates.template import Draw, Instance, Script, press

CLIPBOARD = "timeout 5 python3 -I -c 'import tkinter; print(tkinter.Tk().clipboard_get())'"
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def copy_a_result(draw: Draw) -> Instance:
    """Compute with two numbers."""
    first, second, other = (int("".join(draw.sample("123456789", digits))) for digits in (3, 2, 2))
    word, wrong = draw.sample(sorted(SIGNS), 2)
    value = {"plus": first + second, "minus": first - second, "times": first * second}[word]
    ask = draw.phrase("Compute {} {} {} and copy the result.", "How much is {} {} {}? Copy it to the clipboard.")

    def computing(sign: str, with_number: int = second) -> Script:
        keys = (str(first), SIGNS[sign], str(with_number))
        return (*(f"type(content='{key}')" for key in keys), *press("enter"))

    return Instance(
        ask.format(first, word, second),
        launch=("galculator",),
        window="galculator",
        done=lambda home: home.output(CLIPBOARD).strip() == str(value),
        solution=(*computing(word), *press("ctrl c")),
        near_misses={
            "not copied": computing(word),
            "another operation": (*computing(wrong), *press("ctrl c")),
            "another number": (*computing(word, other if other != second else other - 1), *press("ctrl c")),
        },
    )
