"""What an agent may leave of slides in Impress, by template."""

import re
from functools import partial

from arpo.envs.desktop.templates.documents import read_slides
from tests.envs.desktop.templates.odf import odp, page
from tests.envs.desktop.templates.states.common import number_of


def slides_of(instance):
    return [tuple(each.texts) for each in read_slides(instance.files["Documents/talk.odp"])]


def shown(slides, *more, hidden=()):
    return odp(*(page(*each, hidden=index in hidden) for index, each in enumerate(slides)), *more)


def changed(slides, number, *texts):
    return [*slides[:number], texts, *slides[number + 1 :]]


def other_slides(slides):
    shape = "<draw:custom-shape><text:p>More</text:p></draw:custom-shape>"
    yield "in another order", False, shown(slides[::-1])
    yield "a shape with words", False, odp(page(*slides[0], more=shape), *(page(*each) for each in slides[1:]))
    yield "a box more", False, shown(changed(slides, 0, *slides[0], "More"))
    yield "both in one box", False, shown(changed(slides, 0, list(slides[0])))
    yield "nothing", False, odp()


def _changed(instance, place):
    slides, number = slides_of(instance), number_of(instance)
    new = re.search(r"'(.+)'", instance.instruction)[1]

    def with_box(box, what):
        return changed(slides, number, *(what if index == box else each for index, each in enumerate(slides[number])))

    right, old = with_box(place, new), slides[number][place]
    yield "right", True, shown(right)
    yield "an empty line behind it", True, shown(with_box(place, [new, ""]))
    yield "an empty box more", True, shown([(*each, "") for each in right])
    yield "the other box", False, shown(with_box(1 - place, new))
    yield "a line of its own", False, shown(with_box(place, [old, new]))
    notes = f"<text:p>{new}</text:p>"
    yield "in the notes", False, odp(*(page(*each).replace("<text:p/>", notes) for each in slides))
    yield from other_slides(right)


change_a_title, change_a_text = partial(_changed, place=0), partial(_changed, place=1)


def delete_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    right = slides[:number] + slides[number + 1 :]
    yield "right", True, shown(right)
    yield "hidden", False, shown(slides, hidden=[number])
    yield "emptied", False, shown(changed(slides, number))
    yield "its title is left", False, shown(changed(slides, number, slides[number][0]))
    yield from other_slides(right)


def duplicate_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    right = slides[: number + 1] + slides[number:]
    yield "right", True, shown(right)
    if number < len(slides) - 1:
        yield "at the end", False, shown([*slides, slides[number]])
    yield "without its text", False, shown([*slides[:number], slides[number][:1], *slides[number:]])
    yield from other_slides(right)


def hide_a_slide(instance):
    slides, number = slides_of(instance), number_of(instance)
    others = [index for index in range(len(slides)) if index != number]
    yield "right", True, shown(slides, hidden=[number])
    yield "all hidden", False, shown(slides, hidden=[number, *others])
    yield "the others hidden", False, shown(slides, hidden=others)
    yield "deleted", False, shown(slides[:number] + slides[number + 1 :])
