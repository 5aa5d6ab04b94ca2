import pytest

from pipeline.pillow_image import describe, is_cut


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("cannot read <_io.BytesIO object at 0x7f00a> here", "cannot read  here"),
        ("no such file: '/data/x.jpg'", "no such file: ''"),
        ("no such file: /data/x.jpg", "no such file:"),
        ("Invalid progressive/lossless parameters", "Invalid progressive/lossless parameters"),
        ("TIFF opening failed. Missing dimensions", "Missing dimensions"),
        ("two\n  lines", "two lines"),
        (MemoryError(), "MemoryError"),
        ("x" * 500, "x" * 200),
    ],
)
def test_messages_are_one_line_without_paths_and_addresses(message, expected):
    assert describe(message) == expected


def test_missing_data_is_told_from_wrong_data():
    assert is_cut("image file is truncated (13 bytes not processed)")
    assert is_cut("Premature end of JPEG file")
    assert is_cut("not enough image data")
    assert not is_cut("broken data stream when reading image file")
    assert not is_cut("buffer overrun when reading image file")
