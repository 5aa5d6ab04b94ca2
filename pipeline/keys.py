"""What a member's name says: sample key, suffix, image or not, or nothing of ours.

Names are only names: nothing is ever written to disk, so absolute paths and `..` are harmless.
"""

import re
from collections.abc import Set
from typing import Literal

KeySplit = Literal["first_dot", "last_dot"]

# The extension only says which member is the image; its format is read from its bytes. Formats that
# are known but not decoded are here too: they become rejections that name the format.
_EXTENSIONS = """
jpg jpeg jpe jfif jif mpo png apng webp gif bmp dib tif tiff avif avifs heic heif hif jxl
jp2 j2k j2c jpc jpf jpx jpm jph jhc pnm pbm pgm ppm pam pfm p7 ico cur icns tga qoi dds blp psd
sgi rgb bw ras sun xbm xpm pcx dcx fli flc msp im iim fits svg dng cr2 cr3 nef arw orf rw2 raf
eps wmf emf
"""
IMAGE_EXTENSIONS = frozenset(_EXTENSIONS.split())
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\udc80-\udcff]|\\(?=x[0-9a-f]{2})")
_META = re.compile(r"__.*__", re.DOTALL)


def split_name(name: str, rule: KeySplit) -> tuple[str, str] | None:
    """Key and lower-case suffix of a member; None where its base name has no dot inside.

    first_dot is WebDataset's rule: directories belong to the key, and the base name's first dot
    begins the suffix. "a.b/c.seg.png" has key "a.b/c" and suffix "seg.png".
    """
    start = name.rfind("/") + 1
    dot = name.find(".", start) if rule == "first_dot" else name.rfind(".", start)
    if dot <= start:
        return None
    return name[:dot], name[dot + 1 :].lower()


def is_image(suffix: str, named: Set[str]) -> bool:
    """Whether a member with this suffix is an image; `named`, where given, decides alone."""
    if named:
        return suffix in named
    return suffix.rpartition(".")[2] in IMAGE_EXTENSIONS


def skip_reason(name: str) -> str | None:
    """Why a file is nothing of ours by its name alone, None where it may be part of a sample."""
    first, _, _ = name.partition("/")
    base = name[name.rfind("/") + 1 :]
    if base.startswith("._") or "__MACOSX" in name.split("/"):
        return "resource_fork"
    if _META.fullmatch(first):
        return "meta"
    if base.startswith("."):
        return "hidden"
    return None if "." in base else "no_extension"


def is_meta_key(key: str) -> bool:
    """Whether a key is like __meta__: its files describe the shard, unless one is an image."""
    return _META.fullmatch(key.rpartition("/")[2]) is not None


def printable(name: str) -> str:
    r"""The name as text that every Parquet reader can hold, distinct for distinct names.

    Bytes that are not UTF-8, and control characters, become \xNN. A backslash that already stands
    before such letters becomes \x5c, so that no two names meet.
    """
    return _UNPRINTABLE.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)
