"""Tasks with the calculator, whose results go to the clipboard."""

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


def copy_a_total(draw: Draw) -> Instance:
    """Add several numbers."""
    numbers = [draw.randrange(10, 500) for _ in range(draw.randrange(3, 6))]
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    ask = draw.choice(("Add {} and copy the sum.", "What is the sum of {}? Copy it to the clipboard."))
    return _instance(ask.format(listed), sum(numbers), "+".join(map(str, numbers)), "+".join(map(str, numbers[:-1])))


def copy_a_change(draw: Draw) -> Instance:
    """Compute what is left of a sum after a purchase of several equal things."""
    price, count = draw.randrange(2, 30), draw.randrange(2, 12)
    paid = price * count + draw.randrange(1, 200)
    ask = draw.choice(
        (
            "{0} tickets cost {1} each. How much is left of {2}? Copy the result.",
            "Somebody pays {2} for {0} things at {1} each. Compute the change and copy it.",
        )
    )
    return _instance(
        ask.format(count, price, paid), paid - price * count, f"{paid}-{count}*{price}", f"{count}*{price}"
    )


TEMPLATES = templates_of(__name__, (copy_a_result, copy_a_total, copy_a_change))


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
