"""Presentations, and what a person would have made of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BULLET = '<a:buChar xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" char="•"/>'
LECTURE = (("Rivers", "Where they rise"), ("Lakes", "How deep they are"), ("Seas", "Which salts they hold"))


def presentation(
    path: Path, slides: Sequence[tuple[str, str]] = LECTURE, change: Callable[[Any], object] = lambda _: None
) -> None:
    import pptx

    made = pptx.Presentation()
    background = made.slide_master.background.fill
    background.solid()
    background.fore_color.rgb = pptx.dml.color.RGBColor(255, 255, 255)
    for texts in slides:
        slide = made.slides.add_slide(made.slide_layouts[6])
        for place, text in enumerate(texts):
            text_box(slide, place, text)
    change(made)
    made.save(path)


def text_box(slide: Any, place: int, text: str) -> None:
    from pptx.enum.text import MSO_AUTO_SIZE, PP_ALIGN
    from pptx.util import Inches

    box = slide.shapes.add_textbox(Inches(1), Inches(1 + 2 * place), Inches(8), Inches(1))
    box.text_frame.word_wrap, box.text_frame.auto_size = True, MSO_AUTO_SIZE.NONE
    write(box, text, 32)
    box.text_frame.paragraphs[0].alignment = PP_ALIGN.LEFT


def write(shape: Any, text: str, size: int, font: str = "Arial") -> None:
    from pptx.dml.color import RGBColor
    from pptx.util import Pt

    run = shape.text_frame.paragraphs[0].add_run()
    run.text, run.font.name, run.font.size, run.font.color.rgb = text, font, Pt(size), RGBColor(0, 0, 0)


def last_two_slides_again(start: Path, gold: Path) -> None:
    presentation(start)
    presentation(gold, (*LECTURE, *LECTURE[1:]))


def text_in_an_empty_box(start: Path, gold: Path) -> None:
    def add(text: str) -> Callable[[Any], None]:
        return lambda made: _placeholders(made, ("Plan", "What comes when"), ("Pages", text))

    presentation(start, (), add(""))
    presentation(gold, (), add("Page 1"))


def _placeholders(made: Any, *slides: tuple[str, str]) -> None:
    from pptx.enum.text import PP_ALIGN
    from pptx.oxml import parse_xml

    for title, text in slides:
        slide = made.slides.add_slide(made.slide_layouts[1])
        above, below = slide.placeholders
        write(above, title, 44, "Calibri")
        above.text_frame.paragraphs[0].alignment = PP_ALIGN.CENTER
        if text:
            write(below, text, 32, "Calibri")
            below.text_frame.paragraphs[0]._p.get_or_add_pPr().append(parse_xml(BULLET))


BUILDERS = {
    "21760ecb-8f62-40d2-8d85-0cee5725cb72": presentation,
    "73c99fb9-f828-43ce-b87a-01dc07faa224": text_in_an_empty_box,
    "9ec204e4-f0a3-42f8-8458-b772a6797cab": last_two_slides_again,
    "a097acff-6266-4291-9fbd-137af7ecd439": presentation,
    "ce88f674-ab7a-43da-9201-468d38539e4a": presentation,
}
