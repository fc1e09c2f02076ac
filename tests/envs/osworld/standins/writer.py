"""Texts, and what a person would have made of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TEXT = (
    "A guide to the garden",
    "The garden opens in March and closes in late autumn.",
    "Visitors enter by the north gate, where the tickets are sold.",
    "Dogs stay outside.",
)


def document(path: Path, paragraphs: Sequence[str] = TEXT, change: Callable[[Any], object] = lambda _: None) -> None:
    import docx

    made = docx.Document()
    for text in paragraphs:
        made.add_paragraph(text)
    change(made)
    made.save(path)


def two_paragraphs_with_double_spacing(start: Path, gold: Path) -> None:
    def spacing(*values: float) -> Callable[[Any], None]:
        def change(made: Any) -> None:
            for paragraph, value in zip(made.paragraphs, values, strict=True):
                paragraph.paragraph_format.line_spacing = value

        return change

    document(start, change=spacing(1.0, 1.0, 1.0, 1.0))
    document(gold, change=spacing(2.0, 2.0, 1.0, 1.0))


def subscript_in_a_formula(start: Path, gold: Path) -> None:
    def subscript(made: Any) -> None:
        paragraph = made.paragraphs[0]
        paragraph.runs[0].text = "H"
        paragraph.add_run("2").font.subscript = True
        paragraph.add_run("O in the river")

    text = ("H2O in the river", "It is measured twice a year.")
    document(start, text)
    document(gold, text, subscript)


def text_in_another_font(start: Path) -> None:
    def font(made: Any) -> None:
        for paragraph in made.paragraphs:
            paragraph.runs[0].font.name = "Liberation Sans"

    document(start, change=font)


def last_paragraph_struck_through(start: Path, gold: Path) -> None:
    def strike(made: Any) -> None:
        made.paragraphs[-1].runs[0].font.strike = True

    document(start)
    document(gold, change=strike)


def lower_case(start: Path, gold: Path) -> None:
    text = ("SPEAK SLOWLY", "Look at the AUDIENCE, not at the screen.", "STOP when the time is over.")
    document(start, text)
    document(gold, [each.lower() for each in text])


def capital_letters(start: Path, gold: Path) -> None:
    text = ("maps in novels", "a river runs through most of them", "nobody measures it")
    document(start, text)
    document(gold, [" ".join(word[0].upper() + word[1:] for word in each.split()) for each in text])


def four_page_breaks(start: Path) -> None:
    from docx.enum.text import WD_BREAK

    def breaks(made: Any) -> None:
        for paragraph in made.paragraphs[1:]:
            paragraph.insert_paragraph_before().add_run().add_break(WD_BREAK.PAGE)

    document(start, [f"This is page {number}." for number in range(1, 6)], breaks)


BUILDERS = {
    "0810415c-bde4-4443-9047-d5f70165a697": two_paragraphs_with_double_spacing,
    "0b17a146-2934-46c7-8727-73ff6b6483e8": subscript_in_a_formula,
    "0e763496-b6bb-4508-a427-fad0b6c3e195": text_in_another_font,
    "3ef2b351-8a84-4ff2-8724-d86eae9b842e": document,
    "72b810ef-4156-4d09-8f08-a0cf57e7cefe": last_paragraph_struck_through,
    "d53ff5ee-3b1a-431e-b2be-30ed2673079b": lower_case,
    "e528b65e-1107-4b8c-8988-490e4fece599": capital_letters,
    "ecc2413d-8a48-416e-a3a2-d30106ca36cb": four_page_breaks,
}
