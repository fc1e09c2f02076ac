"""Tasks in the browser, on pages of the home directory: forms, which hand over what was entered as a download."""

import json
from collections.abc import Mapping
from html import escape

from arpo.envs.desktop.templates.template import Draw, Home, Instance, Script, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, PEOPLE

PAGE = """<!DOCTYPE html><meta charset="utf-8"><title>Loading</title><h1>{title}</h1>{text}
<form id="form">{fields}<p><button>Send</button></p></form>
<script>
const form = document.getElementById("form"), first = form.elements[0];
form.onsubmit = event => {{
    event.preventDefault();
    const values = Object.fromEntries(new FormData(form)), link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(values)]));
    link.download = "answer.json";
    link.click();
}};
first.onfocus = () => {{ document.title = "{title}"; }};
onload = () => first.focus();
</script>
"""
"""A page whose title is there when its first field has the keyboard."""
FIELD = '<p><label>{0} <input name="{0}" autocomplete="off"></label></p>'
ANSWER = "Downloads/answer.json"
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "red", "white", "yellow")

Fields = Mapping[str, str]


def fill_in_a_form(draw: Draw) -> Instance:
    """Enter what the instruction says into the fields of a form, and send it."""
    name, other = draw.sample(PEOPLE, 2)
    thing, count = f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}", draw.randrange(2, 100)
    ask = draw.phrase(
        "Fill in the form and send it. Name: {}, item: {}, count: {}.",
        "{} wants to order the item '{}', count {}. Send the form with that.",
    )
    fields = {"Name": name, "Item": thing, "Count": str(count)}
    return _instance(
        ask.format(name, thing, count),
        "Order",
        "",
        fields,
        {
            "another name": _filling({**fields, "Name": other}),
            "one field is empty": _filling({**fields, "Count": ""}),
            "not sent": _filling(fields)[:-1],
        },
    )


def answer_a_question(draw: Draw) -> Instance:
    """Look something up in a table of the page and enter it."""
    names = draw.sample(NOUNS, draw.randrange(4, 8))
    prices = draw.sample(range(10, 1000), len(names))
    chosen, other = draw.sample(range(len(names)), 2)
    rows = "".join(f"<tr><td>{name}<td>{price}" for name, price in zip(names, prices, strict=True))
    ask = draw.phrase("What does the {} cost? Enter the price and send it.", "Send the price of the {} with the form.")
    fields = {"Price": str(prices[chosen])}
    return _instance(
        ask.format(names[chosen]),
        "Prices",
        f"<table>{rows}</table>",
        fields,
        {"of another thing": _filling({"Price": str(prices[other])}), "not sent": _filling(fields)[:-1]},
    )


def describe_the_cheapest(draw: Draw) -> Instance:
    """Find the cheapest thing of a table, and enter its name and colour."""
    names = draw.sample(NOUNS, draw.randrange(4, 8))
    prices = sorted(draw.sample(range(10, 1000), len(names)))
    colours = [draw.choice(COLOURS) for _ in names]
    things = list(zip(names, prices, colours, strict=True))
    (cheapest, _, colour), (other, _, _) = things[:2]
    draw.shuffle(things)
    rows = "".join(f"<tr><td>{name}<td>{shade}<td>{price}" for name, price, shade in things)
    wrong = COLOURS[COLOURS.index(colour) - 1]
    ask = draw.phrase(
        "Which thing is the cheapest, and which colour has it? Send both.",
        "Send name and colour of the cheapest thing.",
    )
    fields = {"Name": cheapest, "Colour": colour}
    return _instance(
        ask,
        "Things",
        f"<table>{rows}</table>",
        fields,
        {
            "another thing": _filling({**fields, "Name": other}),
            "another colour": _filling({**fields, "Colour": wrong}),
        },
    )


def _filling(fields: Fields) -> Script:
    """Type into the fields one after the other, and press the button behind them."""
    return (*(f"type(content='{value}\\t')" for value in fields.values()), *press("enter"))


def _instance(instruction: str, title: str, text: str, fields: Fields, near_misses: Mapping[str, Script]) -> Instance:
    page = PAGE.format(title=title, text=text, fields="".join(FIELD.format(escape(name)) for name in fields))

    def done(home: Home) -> bool:
        try:
            sent: object = json.loads(home.content(ANSWER))
        except (ValueError, RecursionError):  # the agent can write anything there
            return False
        return sent == dict(fields)

    return Instance(
        instruction,
        launch=("chromium", "~/page.html"),
        window=title,
        done=done,
        solution=_filling(fields),
        near_misses=near_misses,
        files={"page.html": page.encode()},
    )
