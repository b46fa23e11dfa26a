"""Image files of every mode: the pixels are those that a viewer shows, or the image is refused."""

import struct
import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageCms
from refusals import refused

from ablate.data import image_file
from ablate.errors import UserError

SIDE = 16
RAMP = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)  # 0 .. 255, from black to white
GRAY = RAMP.astype(np.uint8)
DEEP = (RAMP * 257).astype(np.uint16)  # the same between 0 and 65535


def png(values, kind, *chunks):
    """A PNG of 16 bits. kind: 0 gray, 2 RGB, 4 gray with alpha, 6 RGBA."""

    def chunk(name, content):
        sum_ = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + sum_

    height, width = len(values), values.shape[1] // {0: 1, 2: 3, 4: 2, 6: 4}[kind]
    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = ((b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def saved(image, kind, **options):
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rgba(alpha):
    image = Image.fromarray(GRAY).convert("RGBA")
    image.putalpha(Image.fromarray(alpha))
    return image


def tiff(values, **options):
    return saved(Image.fromarray(values), "TIFF", **options)


def lab():
    change = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    return saved(ImageCms.applyTransform(Image.fromarray(GRAY).convert("RGB"), change), "TIFF")


def gamma(value):
    return b"gAMA", struct.pack(">I", value)


WHITE_IS_0 = {"tiffinfo": {262: 0}}
OPAQUE = np.full_like(GRAY, 255)
# Files that show the ramp, with the difference that a lossy way may make.
SHOWN = {
    "8-bit gray PNG": (lambda: saved(Image.fromarray(GRAY), "PNG"), 0),
    "16-bit gray PNG": (lambda: png(DEEP, 0), 0),
    "16-bit RGB PNG": (lambda: png(np.repeat(DEEP, 3, 1), 2), 0),
    "16-bit gray TIFF": (lambda: tiff(DEEP), 0),
    "16-bit gray TIFF, white is 0": (lambda: tiff(65535 - DEEP, **WHITE_IS_0), 0),
    # Pillow inverts 8 bits where it writes them so, and 16 bits not.
    "8-bit gray TIFF, white is 0": (lambda: tiff(GRAY, **WHITE_IS_0), 0),
    "16-bit PGM": (lambda: b"P5 16 16 65535\n" + DEEP.astype(">u2").tobytes(), 0),
    "RGBA, opaque": (lambda: saved(rgba(OPAQUE), "PNG"), 0),
    "CMYK": (lambda: saved(Image.fromarray(GRAY).convert("CMYK"), "TIFF"), 1),
    "YCbCr": (lambda: saved(Image.fromarray(GRAY).convert("RGB"), "JPEG", quality=100), 3),
    "palette": (lambda: saved(Image.fromarray(GRAY).convert("P"), "PNG"), 0),
    "gamma of a screen": (lambda: png(DEEP, 0, gamma(45455)), 0),
    "gamma beside sRGB": (lambda: png(DEEP, 0, (b"sRGB", b"\0"), gamma(100000)), 0),
}


def read(tmp_path, content, background=None):
    (tmp_path / "it").write_bytes(content)
    image = image_file.read(tmp_path / "it", key="data.root", background=background)
    assert image.mode == "RGB"
    return np.asarray(image).astype(np.int64)


@pytest.mark.parametrize("name", SHOWN)
def test_a_ramp_is_read_as_a_ramp(tmp_path, name):
    made, off = SHOWN[name]
    assert np.abs(read(tmp_path, made()) - RAMP[..., None]).max() <= off


def test_a_linear_png_is_shown_with_its_gamma(tmp_path):
    """Half of the light is 186 of 255 on a screen of 2.2."""
    found = read(tmp_path, png(DEEP, 0, gamma(100000)))[..., 0].ravel()
    assert found[128] == 186
    assert np.abs(found - 255 * (np.arange(256) / 255) ** (1 / 2.2)).max() <= 0.5


@pytest.mark.parametrize("deep", [False, True])
def test_transparent_pixels_show_the_background(tmp_path, deep):
    """A black shape whose form is in alpha alone."""
    if deep:
        content = png(np.stack([0 * DEEP, DEEP], -1).reshape(SIDE, -1), 4)
    else:
        shape = Image.new("RGBA", (SIDE, SIDE))
        shape.putalpha(Image.fromarray(GRAY))
        content = saved(shape, "PNG")
    with pytest.raises(UserError, match=r"it has transparent pixels; set data\.background"):
        read(tmp_path, content)
    assert np.abs(read(tmp_path, content, "white") - (255 - RAMP[..., None])).max() <= 1
    assert read(tmp_path, content, "black").max() == 0


def test_a_transparent_gray_of_16_bits_is_transparent(tmp_path):
    content = png(DEEP, 0, (b"tRNS", struct.pack(">H", 0)))
    with pytest.raises(UserError, match="has transparent pixels"):
        read(tmp_path, content)
    found = read(tmp_path, content, "white")[..., 0].ravel()
    assert found.tolist() == [255, *range(1, 256)]


def test_a_deep_image_is_turned_as_its_camera_was(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    content = saved(Image.fromarray(DEEP), "PNG", exif=exif)
    assert read(tmp_path, content)[..., 0].ravel().tolist() == list(range(255, -1, -1))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (tiff(DEEP.astype(np.int32)), "has 32-bit pixels, and the value of white is unknown"),
        (tiff((RAMP / 255).astype(np.float32)), "has floating-point pixels"),
        (tiff(GRAY, save_all=True, append_images=[Image.fromarray(GRAY)]), "has 2 pages"),
        (b"\x89PNG\r\n\x1a\n", "it (it is damaged, or in no known format)"),
        (lab()[:200], "cannot decode the image"),
    ],
    # An image's color profile has the second at which it was made.
    ids=["32 bits", "floats", "pages", "no PNG", "Lab"],
)
def test_what_nothing_explains_is_refused(tmp_path, content, line):
    with refused(str(tmp_path / "it"), line):
        read(tmp_path, content)


@pytest.mark.filterwarnings("ignore")  # Pillow says what is wrong with a tag
def test_a_damaged_image_never_ends_in_a_traceback(tmp_path):
    rng = np.random.default_rng(0)
    for made, _ in SHOWN.values():
        content = bytearray(made())
        for _ in range(20):
            damaged = content.copy()
            for place in rng.integers(8, len(content), 5):
                damaged[place] ^= int(rng.integers(1, 256))
            with suppress(UserError):
                read(tmp_path, bytes(damaged[: rng.integers(20, len(content) + 1)]))
