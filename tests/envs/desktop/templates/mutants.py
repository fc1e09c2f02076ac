"""Wrong documents, made of a right one: each fact of it that can matter is changed, one at a time."""

import io
import re
import zipfile
from copy import deepcopy
from functools import partial
from xml.etree import ElementTree as ET

from arpo.envs.desktop.templates.documents import NAMESPACES


def name(short):
    prefix, _, local = short.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


TEXTS = {name("text:p"), name("text:h")}
PARTS = TEXTS | {name(each) for each in ("table:table-row", "table:table", "draw:page", "draw:frame")}
CELL, VALUE, TYPE, PAGE_STYLE = map(name, ("table:table-cell", "office:value", "office:value-type", "draw:style-name"))
SEVEN = f'<cell xmlns:office="{NAMESPACES["office"]}" office:value-type="float" office:value="7"/>'
EMPTY = re.compile(r'<table:table-cell table:number-columns-repeated="\d+"/>')
MORE = {"spreadsheet": "table:table", "text": "table:table", "presentation": "draw:page"}
"""An empty one of these is too much."""


def changes(body):
    yield "one more", partial(body.append, ET.Element(name(MORE[body.tag.rpartition("}")[2]])))
    for each, parent in [(child, above) for above in body.iter() for child in above]:
        text = "".join(each.itertext())
        if VALUE in parent.attrib:  # a number is shown in any way
            continue
        if each.tag in TEXTS and each.text:
            for changed in {f"{each.text}x", f"{each.text} ", each.text.swapcase()} - {each.text}:
                yield f"{changed!r} for {text!r}", partial(setattr, each, "text", changed)
        if each.tag in PARTS and (text or each.tag in map(name, MORE.values())):
            yield f"{text!r} gone", partial(parent.remove, each)
            yield f"{text!r} twice", partial(parent.insert, list(parent).index(each), deepcopy(each))
        if each.tag == CELL and each.get(TYPE):
            yield f"{text!r} as nothing", partial(each.attrib.pop, TYPE)
            seven = ET.fromstring(SEVEN)
            seven.tag = CELL
            yield f"a number behind {text!r}", partial(parent.append, seven)
        if VALUE in each.attrib:
            yield f"more than {text}", partial(each.set, VALUE, str(float(each.get(VALUE)) + 1))
            yield f"{text} as a text", partial(each.attrib.pop, VALUE)
        if each.get(name("table:name")) and body.tag == name("office:spreadsheet"):
            yield "another name", partial(each.set, name("table:name"), "Other")
        if PAGE_STYLE in each.attrib:
            yield "hidden or not", partial(each.set, PAGE_STYLE, "dp1" if each.get(PAGE_STYLE) == "dp2" else "dp2")
        for key in {name("text:style-name"), name("table:style-name")} & each.attrib.keys() if text else ():
            yield f"{text!r} without its style", partial(each.attrib.pop, key)


def mutants(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    source = EMPTY.sub("", parts["content.xml"].decode())  # a million cells take time
    number = count = 0
    while number <= count:
        root = ET.fromstring(source)
        found = list(changes(root.find("office:body/*", NAMESPACES)))
        count = len(found) - 1
        what, change = found[number]
        change()
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for path, part in {**parts, "content.xml": ET.tostring(root)}.items():
                archive.writestr(path, part)
        yield what, file.getvalue()
        number += 1
