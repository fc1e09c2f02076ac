"""Drawn 1080p desktops for the benchmarks: text, widgets, a smooth wallpaper, and at worst a photograph."""

import hashlib
import random
from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 1920, 1080
TEXT = "file edit view the of report budget total click save cell sum name date open window mail search note"
WORDS = TEXT.split()


@cache
def wallpaper(photo: bool) -> Image.Image:
    """A gradient as desktops ship it, or the same with the grain of a photograph, which no PNG can compress."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    wave = np.sin(columns / 410 + np.cos(rows / 230))
    pixels = np.stack([90 + 50 * wave, 40 + 30 * rows / HEIGHT, 110 + 60 * columns / WIDTH], axis=-1)
    if photo:
        pixels = pixels + np.random.default_rng(0).normal(0, 6, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def desktop(seed: int, content: str) -> tuple[str, bytes]:
    """Return SHA-256 and PNG of a desktop; `content` is `document` (one window all over), `windows` or `photo`."""
    rng = random.Random(seed)
    image = wallpaper(content == "photo").copy()
    draw = ImageDraw.Draw(image)
    if content == "document":
        window(draw, rng, (0, 30, WIDTH, HEIGHT))
    else:
        for _ in range(3):
            left, top = rng.randrange(0, 900), rng.randrange(40, 400)
            window(draw, rng, (left, top, left + rng.randrange(500, 900), top + rng.randrange(300, 600)))
    draw.rectangle((0, 0, WIDTH, 30), fill=(40, 40, 40))
    draw.text((900, 6), f"Jun 3 12:{seed % 60:02d}", font=font(15), fill="white")
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue()


def window(draw: ImageDraw.ImageDraw, rng: random.Random, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    draw.rectangle(box, fill="white", outline=(120, 120, 120))
    draw.rectangle((left, top, right, top + 28), fill=(222, 222, 226))
    draw.text((left + 10, top + 6), " ".join(rng.choices(WORDS, k=4)), font=font(15), fill="black")
    for x in range(left + 10, right - 60, 70):
        draw.rounded_rectangle((x, top + 36, x + 60, top + 60), 5, fill=(240, 240, 244), outline=(180, 180, 180))
        draw.text((x + 8, top + 40), rng.choice(WORDS), font=font(13), fill=(30, 30, 90))
    for y in range(top + 74, bottom - 20, 21):
        text = " ".join(rng.choices(WORDS, k=40))
        characters = (right - left - 24) // 8
        draw.text((left + 12, y), text[:characters], font=font(14), fill=(20, 20, 20))


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
