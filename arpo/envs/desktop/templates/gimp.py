"""Tasks in GIMP: the size, sides and colours of a picture, and the format of its file."""

import io
from collections.abc import Callable, Mapping
from itertools import product
from typing import TYPE_CHECKING

from arpo.envs.desktop.templates.template import Draw, Home, Instance, Script, press
from arpo.envs.desktop.templates.words import ADJECTIVES, NOUNS, file_name

if TYPE_CHECKING:
    from PIL.Image import Image

FOLDER = "Pictures"
COLUMNS, ROWS, BLOCK = 4, 3, 40
"""A picture is a board of blocks in different colours; in every size that is asked for, they end at whole pixels."""
SHADES = (0, 80, 160, 240)
PATCH = 10
"""Pixels of a square whose mean is compared."""
SMOOTHED = 32
"""By how much the mean shade of a patch may differ, of 255, where JPEG or another interpolation has been at work."""
OPAQUE = 255
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError)
"""What Pillow raises on a file that is no picture, or a damaged one."""
FORMATS = {"bmp": "BMP", "jpg": "JPEG"}
CROP_TO_CONTENT, INVERT, LINEAR_INVERT = 9, 10, 11
"""Entries of the menus Image and Colors, as the arrow keys count them."""
TURNS = {
    "90 degrees clockwise": (2, "ROTATE_270"),
    "90 degrees counter-clockwise": (3, "ROTATE_90"),
    "180 degrees": (4, "ROTATE_180"),
}
FLIPS = {"horizontally": (0, "FLIP_LEFT_RIGHT"), "vertically": (1, "FLIP_TOP_BOTTOM")}
"""Entries of the menu Image, Transform, and what Pillow calls them."""
SESSION = b"""
(session-info "toplevel" (factory-entry "gimp-single-image-window") (position 0 0) (size 1024 600))
"""
"""GIMP's window is larger than the screen without it."""


def scale_a_picture(draw: Draw) -> Instance:
    """Make a picture larger or smaller, in proportion."""
    picture = _board(draw)
    width, other = draw.sample((80, 120, 200, 240, 280, 320), 2)
    ask = draw.phrase("Scale the picture to a width of {} pixels", "Make the picture {} pixels wide")
    return _overwriting(
        draw,
        f"{ask.format(width)}, and keep its proportions.",
        picture,
        picture.resize((width, width * ROWS // COLUMNS), 0),
        _scaling(width),
        {"another width": _scaling(other), "the layer alone": _scaling(width, "Layer")},
        tolerance=SMOOTHED,
    )


def crop_a_picture(draw: Draw) -> Instance:
    """Cut off the border of a picture."""
    from PIL import Image

    inner = _board(draw)
    left, top, right, bottom = (draw.randrange(10, 50) for _ in range(4))
    size = inner.width + left + right, inner.height + top + bottom
    red, green, blue = (draw.choice((40, 120, 200)) for _ in range(3))
    picture = Image.new("RGB", size, (red, green, blue))
    picture.paste(inner, (left, top))
    ask = draw.phrase(
        "Crop the picture to what is inside its border.", "Cut off the single-colour border of the picture."
    )
    return _overwriting(
        draw,
        ask,
        picture,
        inner,
        _menu("i", CROP_TO_CONTENT),
        {
            "the layer alone": (*press("alt l"), *press("up"), *press("enter")),
            "scaled too": (*_menu("i", CROP_TO_CONTENT), *_scaling(120)),
        },
    )


def flip_a_picture(draw: Draw) -> Instance:
    """Flip a picture from side to side, or upside down."""
    return _transforming(draw, FLIPS, ("Flip the picture {}.", "Mirror the picture {}."))


def rotate_a_picture(draw: Draw) -> Instance:
    """Turn a picture by a quarter, or by half."""
    return _transforming(draw, TURNS, ("Rotate the picture by {}.", "Turn the picture by {}."))


def invert_the_colours(draw: Draw) -> Instance:
    """Make the negative of a picture."""
    picture = _board(draw)
    ask = draw.phrase("Invert the colours of the picture.", "Turn the picture into its negative.")
    invert = _menu("c", INVERT)
    return _overwriting(
        draw,
        ask,
        picture,
        picture.point([255 - shade for shade in range(256)] * 3),
        invert,
        {"linear light": _menu("c", LINEAR_INVERT), "twice": invert * 2},
    )


def export_a_picture(draw: Draw) -> Instance:
    """Write a picture to another file, in another format."""
    picture, name = _board(draw), file_name(draw, "png")
    ending, other = draw.sample(tuple(FORMATS), 2)
    new = f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}-{draw.randrange(10, 100)}"
    asks = (
        "Export the picture to the file {}, beside the one that it is in.",
        "Keep this picture, and export it as {} in the same folder.",
    )

    def exporting(stem: str, ending: str) -> Script:
        dialog = ("window('Export Image')", "hotkey(key='ctrl a')", f"type(content='{stem}.{ending}\\n')")
        options = (f"window('Export Image as {FORMATS[ending]}')", "hotkey(key='enter')", "window('(exported)')")
        return ("hotkey(key='ctrl shift e')", *dialog, *options)

    def done(home: Home) -> bool:
        tree = home.tree(FOLDER)
        made = tree.pop(f"{new}.{ending}", b"")
        return tree == {name: _png(picture)} and _shows(made, FORMATS[ending], picture, SMOOTHED)

    return _instance(
        name,
        picture,
        draw.choice(asks).format(f"{new}.{ending}"),
        done,
        exporting(new, ending),
        {"another format": exporting(new, other), "another name": exporting(f"{new}0", ending)},
    )


def _transforming(draw: Draw, ways: Mapping[str, tuple[int, str]], asks: tuple[str, ...]) -> Instance:
    """Return an instance in which a picture is to be transformed in one of several ways."""
    from PIL import Image

    picture = _board(draw)
    way, other = draw.sample(tuple(ways), 2)
    number, transposition = ways[way]
    wanted = picture.transpose(Image.Transpose[transposition])

    solution, wrong = _menu("i", number, submenu="t"), _menu("i", ways[other][0], submenu="t")
    near_misses = {"another way": wrong, "one more": solution + wrong}
    return _overwriting(draw, draw.choice(asks).format(way), picture, wanted, solution, near_misses)


def _overwriting(
    draw: Draw,
    instruction: str,
    picture: "Image",
    wanted: "Image",
    solution: Script,
    near_misses: Mapping[str, Script],
    *,
    tolerance: int = 0,
) -> Instance:
    """Return an instance in which a picture is to be changed and its file overwritten.

    Instruction and scripts are without overwriting. The mean shade of a patch may differ by `tolerance`, of 255.
    """
    name = file_name(draw, "png")
    overwrite = ("hotkey(key='alt f')", "hotkey(key='w')", "window('(overwritten)')")

    def done(home: Home) -> bool:
        tree = home.tree(FOLDER)
        return set(tree) == {name} and _shows(tree[name], "PNG", wanted, tolerance)

    return _instance(
        name,
        picture,
        f"{instruction} Overwrite {name} with the result.",
        done,
        (*solution, *overwrite),
        {**{what: (*script, *overwrite) for what, script in near_misses.items()}, "not overwritten": solution},
    )


def _instance(
    name: str,
    picture: "Image",
    instruction: str,
    done: Callable[[Home], bool],
    solution: Script,
    near_misses: Mapping[str, Script],
) -> Instance:
    """Return an instance with this picture on the screen."""
    return Instance(
        instruction,
        launch=("gimp", "--no-splash", f"~/{FOLDER}/{name}"),
        window=name.removesuffix(".png"),
        done=done,
        solution=solution,
        near_misses=near_misses,
        files={f"{FOLDER}/{name}": _png(picture), ".config/GIMP/2.10/sessionrc": SESSION},
    )


def _board(draw: Draw) -> "Image":
    """Return a picture of blocks, no two in the same colour."""
    from PIL import Image

    small = Image.new("RGB", (COLUMNS, ROWS))
    small.putdata(draw.sample(tuple(product(SHADES, repeat=3)), COLUMNS * ROWS))
    return small.resize((COLUMNS * BLOCK, ROWS * BLOCK), 0)


def _png(picture: "Image") -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _shows(content: bytes, kind: str, wanted: "Image", tolerance: int) -> bool:
    """Return whether a file has this format and shows this picture, all of it opaque."""
    from PIL import Image, ImageChops

    try:
        with Image.open(io.BytesIO(content), formats=(kind,)) as found:
            if found.size != wanted.size:
                return False
            shown = found.convert("RGBA")
    except (*DAMAGED, Image.DecompressionBombError):
        return False
    difference = ImageChops.difference(shown.convert("RGB"), wanted).reduce(PATCH)
    return min(shown.getchannel("A").tobytes()) == OPAQUE and max(difference.tobytes()) <= tolerance


def _scaling(width: int, what: str = "Image") -> Script:
    """Scale the picture or its layer to a width, by its dialog."""
    opening = (*press(f"alt {what[0].lower()}"), *press("s"), f"window('Scale {what}')")
    return (*opening, *press("ctrl a"), f"type(content='{width}\\t')", *press("alt s"))


def _menu(letter: str, entry: int, submenu: str = "") -> Script:
    """Choose an entry of a menu, or of the submenu that another letter opens, by the arrow keys."""
    return (*press(f"alt {letter}"), *(press(submenu) if submenu else ()), *press("down", entry), *press("enter"))
