"""What an agent may leave of a picture in GIMP, by template."""

import base64
import io
import re
import struct

from PIL import Image, ImageDraw, ImageOps
from PIL.Image import Transpose
from PIL.PngImagePlugin import PngInfo, putchunk

from tests.envs.desktop.templates.states.common import names_in, other_files


def picture_of(instance):
    (path,) = [path for path in instance.files if path.endswith(".png")]
    return path, Image.open(io.BytesIO(instance.files[path])).convert("RGB")


def left(picture, path, kind="PNG", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return written(file, path)


def written(file, path):
    """The command that leaves what was written into a buffer."""
    return f"printf %s {base64.b64encode(file.getvalue()).decode()} | base64 -d > {path}"


def faded(picture):
    made = picture.convert("RGBA")
    made.paste((0, 0, 0, 0), (0, 0, made.width // 2, made.height))
    return made


def cleared(picture):
    """The picture, half of it transparent, its colours kept below."""
    made = picture.convert("RGBA")
    made.putalpha(Image.linear_gradient("L").resize(made.size).point(lambda shade: 255 * (shade > 127)))
    return made


def spotted(picture):
    """The picture with a small dot of the opposite colour."""
    made = picture.copy()
    draw = ImageDraw.Draw(made)
    draw.rectangle((24, 24, 29, 29), tuple(255 if shade < 128 else 0 for shade in made.getpixel((26, 26))))
    return made


def darker(picture):
    return picture.point(lambda shade: shade * 15 // 16)


def vast(path):
    """The command that leaves a small file whose picture has 3,600 million pixels."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    file.seek(8)
    putchunk(file, b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return written(file, path)


def marked(text):
    notes = PngInfo()
    notes.add_text("Comment", text)
    return notes


def of_a_picture(path, start, right):
    """What is right and what is wrong with the file, whatever was asked for."""
    yield "right", True, left(right, path)
    yield "without colours to choose from", True, left(right.quantize(256), path)
    yield "with an opaque alpha channel", True, left(right.convert("RGBA"), path)
    yield "with a comment", True, left(right, path, pnginfo=marked("Created with GIMP"))
    yield "as it was", False, left(start, path)
    yield "a JPEG of that name", False, left(right, path, "JPEG", quality=100)
    yield "half transparent", False, left(faded(right), path)
    yield "half transparent, with all its colours", False, left(cleared(right), path)
    yield "with a dot", False, left(spotted(right), path)
    yield "darker", False, left(right.point(lambda shade: shade * 3 // 4), path)
    yield "grey", False, left(right.convert("L"), path)
    yield "one column less", False, left(right.crop((0, 0, right.width - 1, right.height)), path)
    yield "in another file", False, f"{left(start, path)}; {left(right, 'Pictures/other.png')}"
    yield "in the home directory", False, left(right, path.removeprefix("Pictures/"))
    yield "cut short", False, f"{left(right, path)}; truncate -s 200 {path}"
    wide = f"printf '\\377' | dd of={path} bs=1 seek=16 conv=notrunc"
    yield "with a size of its own in the header", False, f"{left(right, path)}; {wide}"
    yield "vast by its header", False, vast(path)
    yield "empty", False, f": > {path}"
    yield "gone", False, f"rm {path}"
    for what, solved, state in other_files(left(right, path), "Pictures", [path.removeprefix("Pictures/")]):
        if "another file" not in what:  # there is none
            yield what, solved, state


def scale_a_picture(instance):
    path, start = picture_of(instance)
    width = int(re.search(r"(\d+) pixels", instance.instruction)[1])
    size = width, width * 3 // 4
    for name in ("NEAREST", "BILINEAR", "BICUBIC", "LANCZOS", "BOX"):
        yield f"by {name}", True, left(start.resize(size, Image.Resampling[name]), path)
    yield "not in proportion", False, left(start.resize((width, start.height), 0), path)
    yield "one pixel more", False, left(start.resize((width + 1, size[1]), 0), path)
    yield from of_a_picture(path, start, start.resize(size, 0))


def crop_a_picture(instance):
    path, start = picture_of(instance)
    border = start.getpixel((0, 0))
    inside = [(x, y) for x in range(start.width) for y in range(start.height) if start.getpixel((x, y)) != border]
    box = (*map(min, zip(*inside, strict=True)), *(most + 1 for most in map(max, zip(*inside, strict=True))))
    inner = start.crop(box)
    yield "a line of the border left", False, left(start.crop((box[0] - 1, *box[1:])), path)
    yield "of the same size elsewhere", False, left(start.crop((0, 0, *inner.size)), path)
    yield "a little darker", False, left(darker(inner), path)
    yield from of_a_picture(path, start, inner)


def _transformed(instance, ways):
    path, start = picture_of(instance)
    wanted = next(way for name, way in ways.items() if name in instance.instruction)
    for each in Transpose:
        yield each.name, each is wanted, left(start.transpose(each), path)
    yield "a little darker", False, left(darker(start.transpose(wanted)), path)
    yield from of_a_picture(path, start, start.transpose(wanted))


def flip_a_picture(instance):
    return _transformed(instance, {"horizontally": Transpose.FLIP_LEFT_RIGHT, "vertically": Transpose.FLIP_TOP_BOTTOM})


def rotate_a_picture(instance):
    quarters = {"90 degrees clockwise": Transpose.ROTATE_270, "90 degrees counter": Transpose.ROTATE_90}
    return _transformed(instance, {**quarters, "180": Transpose.ROTATE_180})


def invert_the_colours(instance):
    path, start = picture_of(instance)
    red, green, _ = ImageOps.invert(start).split()
    yield "two channels of three", False, left(Image.merge("RGB", (red, green, start.split()[2])), path)
    yield "a little darker", False, left(darker(ImageOps.invert(start)), path)
    yield from of_a_picture(path, start, ImageOps.invert(start))


def export_a_picture(instance):
    path, start = picture_of(instance)
    (name,) = names_in(instance)
    kind, wrong = ("JPEG", "BMP") if name.endswith("jpg") else ("BMP", "JPEG")
    new = f"Pictures/{name}"
    yield "right", True, left(start, new, kind)
    yield "in good quality", True, left(start, new, kind, quality=95)
    other = start.quantize(16) if kind == "BMP" else start.convert("CMYK")
    yield "in other colours than RGB", True, left(other, new, kind)
    yield "the same file under that name", False, f"cp {path} {new}"
    yield "another format of that name", False, left(start, new, wrong)
    yield "moved", False, f"{left(start, new, kind)}; rm {path}"
    yield "its first file written anew", False, f"{left(start, new, kind)}; {left(start, path, compress_level=1)}"
    yield "its first file changed", False, f"{left(start, new, kind)}; {left(ImageOps.invert(start), path)}"
    yield "with a dot", False, left(spotted(start), new, kind)
    yield "cut short", False, f"{left(start, new, kind)}; truncate -s 400 {new}"
    yield from other_files(left(start, new, kind), "Pictures", [path.removeprefix("Pictures/")], name)
