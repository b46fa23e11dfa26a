"""Image files as pixels of 8 bits, as a viewer shows them, or a one-line UserError.

Colors of every kind become RGB, 16 bits become 8, a PNG's gamma is applied and EXIF's rotation.
Of an animation the first frame is read; color profiles are ignored, as in torchvision and timm.
Pixels without a known white (32 bits, floating point), several pages, and transparent pixels
without a `background` are rejected: each would be a guess.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ablate.data import source
from ablate.errors import UserError, first_line

SCREEN = 2.2  # the exponent of a display; a PNG's gamma is compared with it
TOLERANCE = 0.05  # a smaller difference from it is none, as in libpng
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a TIFF's tag, and its value for inverted grays


ORIENTATION = 274  # EXIF's tag
Read = TypeVar("Read")


class Unclear(Exception):
    """An image whose pixels can be read and not understood."""


def read(
    path: str | Path, *, key: str, background: str | None = None, content: bytes | None = None
) -> Image.Image:
    """The image, upright, in RGB. key: for messages. background: the color behind transparent
    pixels, by name; None rejects them. content: as for `decoded`."""
    return decoded(path, lambda image: _converted(image, background), key=key, content=content)


def decoded(
    path: str | Path,
    convert: Callable[[Image.Image], Read],
    *,
    key: str,
    what: str = "image",
    content: bytes | None = None,
) -> Read:
    """The result of `convert` for an image as it is stored; may raise Unclear. content: of the
    file, if it is known."""
    content = source.contents(path, key=key) if content is None else content
    try:
        with Image.open(io.BytesIO(content)) as image:
            return convert(image)
    except Unclear as error:
        raise UserError(f"{key}: the {what} {path} {error}") from None
    except UnidentifiedImageError:  # its text is the address of the bytes
        raise UserError(
            f"{key}: cannot decode the {what} {path} (it is damaged, or in no known format)"
        ) from None
    except Exception as error:  # Pillow's decoders raise anything on a damaged file
        raise UserError(f"{key}: cannot decode the {what} {path} ({first_line(error)})") from None


def _converted(image: Image.Image, background: str | None) -> Image.Image:
    require_one_page(image)
    table = _gamma(image)
    upright = ImageOps.exif_transpose(_eight_bits(image))
    colors = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    if table is not None:
        same = list(range(256))  # transparency has no gamma
        colors = colors.point((3 * table + same)[: 256 * len(colors.getbands())])
    return on_background(colors, background)


def require_one_page(image: Image.Image) -> None:
    if image.format == "TIFF" and (pages := getattr(image, "n_frames", 1)) > 1:
        raise Unclear(f"has {pages} pages; an image is one")


def on_background(image: Image.Image, background: str | None) -> Image.Image:
    """In RGB, with transparent pixels over the background; Unclear for those without one."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    colors = image.convert("RGBA")
    if colors.getchannel("A").getextrema() == (255, 255):
        return colors.convert("RGB")
    if background is None:
        raise Unclear("has transparent pixels; set data.background to white or black")
    behind = Image.new("RGBA", colors.size, background)
    behind.alpha_composite(colors)
    return behind.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grays of more than 8 bits as 8; other images as they are."""
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if not deep:
        if image.mode in ("I", "F"):
            raise Unclear(
                f"has {'floating-point' if image.mode == 'F' else '32-bit'} pixels, and the"
                " value of white is unknown; convert it to 8 or 16 bits"
            )
        return image
    values = np.asarray(image).astype(np.uint32)
    gray = ((values + 128) // 257).astype(np.uint8)  # 65535 / 255 = 257
    if image.format == "TIFF" and image.tag_v2.get(PHOTOMETRIC) == WHITE_IS_ZERO:  # type: ignore[attr-defined]
        gray = 255 - gray
    converted = Image.fromarray(gray)
    if (clear := image.info.get("transparency")) is not None:
        converted.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    converted.info["exif"] = image.getexif().tobytes()
    return converted


def _gamma(image: Image.Image) -> list[int] | None:
    """The brightness of each of the 256 values if a PNG states it; a profile or the sRGB chunk
    counts before its gamma (PNG specification, third edition, section 11.3.2)."""
    gamma = image.info.get("gamma")
    if not gamma or {"srgb", "icc_profile"} & image.info.keys():
        return None
    exponent = 1 / (SCREEN * gamma)
    if abs(exponent - 1) < TOLERANCE:
        return None
    return [round(255 * (value / 255) ** exponent) for value in range(256)]
