"""What an agent may leave of slides in Impress, by template."""

import re

from arpo.envs.desktop.templates.documents import read_slides
from tests.envs.desktop.templates.odf import odp, page
from tests.envs.desktop.templates.states.common import number_of


def slides_of(instance):
    return [tuple(each.texts) for each in read_slides(instance.files["Documents/talk.odp"])]


def other_slides(slides):
    """What no task of slides asks for, beside the right ones."""
    pages = [page(*each) for each in slides]
    yield "one more slide", False, odp(*pages, page("More"))
    yield "an empty slide more", False, odp(*pages, page())
    yield "in another order", False, odp(*reversed(pages))
    yield "the last one hidden", False, odp(*pages[:-1], page(*slides[-1], hidden=True))
    yield (
        "a shape with words",
        False,
        odp(page(*slides[0], more="<draw:custom-shape><text:p>More</text:p></draw:custom-shape>"), *pages[1:]),
    )
    yield "a box more", False, odp(page(*slides[0], "More"), *pages[1:])
    yield "upper case", False, odp(page(*(text.upper() for text in slides[0])), *pages[1:])
    yield "both in one box", False, odp(page(list(slides[0])), *pages[1:])
    yield "the last is gone", False, odp(*pages[:-1])
    yield "nothing", False, odp()


def _changed(instance, place):
    slides, number = slides_of(instance), number_of(instance)
    new = re.search(r"'(.+)'", instance.instruction)[1]
    right = [list(each) for each in slides]
    right[number][place] = new
    yield "right", True, odp(*(page(*each) for each in right))
    spaced = [page(*([box, ""] if box == new else box for box in each)) for each in right]
    yield "an empty line behind it", True, odp(*spaced)
    yield "an empty box more", True, odp(*(page(*each, "") for each in right))
    other = [list(each) for each in slides]
    other[number][1 - place] = new
    yield "the other box", False, odp(*(page(*each) for each in other))
    both = [list(each) for each in slides]
    both[number] = [new, new]
    yield "both boxes", False, odp(*(page(*each) for each in both))
    added = [list(each) for each in slides]
    added[number][place] += new
    yield "added", False, odp(*(page(*each) for each in added))
    behind = [
        page(*([box, new] if (i, b) == (number, place) else box for b, box in enumerate(each)))
        for i, each in enumerate(slides)
    ]
    yield "a line of its own", False, odp(*behind)
    yield "in the notes", False, odp(*(page(*each).replace("<text:p/>", f"<text:p>{new}</text:p>") for each in slides))
    lower = [[text.lower() if text == new else text for text in each] for each in right]
    yield "lower case", False, odp(*(page(*each) for each in lower))
    yield from other_slides(right)


def change_a_title(instance):
    yield from _changed(instance, 0)


def change_a_text(instance):
    yield from _changed(instance, 1)


def delete_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    right = slides[:number] + slides[number + 1 :]
    yield "right", True, odp(*(page(*each) for each in right))
    yield "hidden", False, odp(*(page(*each, hidden=index == number) for index, each in enumerate(slides)))
    yield "emptied", False, odp(*(page(*(each if index != number else ())) for index, each in enumerate(slides)))
    yield (
        "its title is left",
        False,
        odp(*(page(*(each[:1] if index == number else each)) for index, each in enumerate(slides))),
    )
    yield from other_slides(right)


def duplicate_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    right = slides[: number + 1] + slides[number:]
    yield "right", True, odp(*(page(*each) for each in right))
    if number < len(slides) - 1:
        yield "at the end", False, odp(*(page(*each) for each in [*slides, slides[number]]))
    yield (
        "three of them",
        False,
        odp(*(page(*each) for each in [*slides[:number], *[slides[number]] * 3, *slides[number + 1 :]])),
    )
    yield (
        "without its text",
        False,
        odp(
            *(page(*each) for each in slides[:number]),
            page(slides[number][0]),
            *(page(*each) for each in slides[number:]),
        ),
    )
    yield from other_slides(right)


def hide_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    yield "right", True, odp(*(page(*each, hidden=index == number) for index, each in enumerate(slides)))
    yield "all hidden", False, odp(*(page(*each, hidden=True) for each in slides))
    yield "the others hidden", False, odp(*(page(*each, hidden=index != number) for index, each in enumerate(slides)))
    yield "deleted", False, odp(*(page(*each) for index, each in enumerate(slides) if index != number))
    yield (
        "and emptied",
        False,
        odp(*(page(*(() if index == number else each), hidden=index == number) for index, each in enumerate(slides))),
    )
    yield "none", False, odp(*(page(*each) for each in slides))
