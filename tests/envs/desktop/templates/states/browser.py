"""What an agent may have sent by a form, by template."""

import json
import re

from tests.envs.desktop.templates.states.common import said


def _sent(values, name="answer.json"):
    content = values if isinstance(values, str) else json.dumps(values)
    return f"mkdir -p Downloads; {said(content, f'Downloads/{name}')}"


def _form(right):
    first = next(iter(right))
    yield "right", True, _sent(right)
    yield "in another order", True, _sent(dict(reversed(right.items())))
    yield "sent twice", True, f"{_sent(right)}; {_sent(right, 'answer (1).json')}"
    yield "a space behind", False, _sent({**right, first: f"{right[first]} "})
    yield "one field is empty", False, _sent({**right, first: ""})
    yield "one field is missing", False, _sent({name: value for name, value in right.items() if name != first})
    yield "one more", False, _sent({**right, "More": "1"})
    yield "elsewhere", False, said(json.dumps(right), "answer.json")
    yield "at second try", False, f"{_sent({**right, first: 'wrong'})}; {_sent(right, 'answer (1).json')}"
    yield "a list", False, _sent([right])
    yield "deep", False, _sent("[" * 30000)
    yield "a long number", False, _sent("9" * 30000)
    yield "nothing", False, _sent("")
    yield "no text", False, "mkdir Downloads; head -c 3000 /dev/urandom > Downloads/answer.json"
    yield "a folder", False, "mkdir -p Downloads/answer.json"


def fill_in_a_form(instance):
    fields, order = r"Name: (\w+), item: (.+), count: (\d+)", r"(\w+) wants to order the item '(.+)', count (\d+)"
    words = instance.instruction
    name, item, count = re.search(fields if "Name" in words else order, words).groups()
    right = {"Name": name, "Item": item, "Count": count}
    yield from _form(right)
    yield "a number", False, _sent({**right, "Count": int(count)})
    yield "turned", False, _sent({**right, "Name": item, "Item": name})


def _prices(instance):
    return re.findall(r"<tr><td>(\w+)(?:<td>([a-z]+))?<td>(\d+)", instance.files["page.html"].decode())


def answer_a_question(instance):
    thing = re.search(r"(?:the|of the) (\w+) (?:cost|with)", instance.instruction)[1]
    prices = {name: price for name, _, price in _prices(instance)}
    yield from _form({"Price": prices[thing]})
    yield "of another", False, _sent({"Price": next(value for name, value in prices.items() if name != thing)})
    yield "the name", False, _sent({"Price": thing})


def describe_the_cheapest(instance):
    name, colour, _ = min(_prices(instance), key=lambda row: int(row[2]))
    yield from _form({"Name": name, "Colour": colour})
    yield "upper case", False, _sent({"Name": name.title(), "Colour": colour.upper()})
