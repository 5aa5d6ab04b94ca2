"""Image bytes to RGB pixels."""

import io

import numpy as np
import simplejpeg
from PIL import Image

from pipeline.config import PreprocessConfig
from pipeline.errors import SampleError
from pipeline.records import RejectReason
from pipeline.resize import RGB


def decode(data: bytes, config: PreprocessConfig) -> RGB:
    if not data:
        raise SampleError(RejectReason.EMPTY_IMAGE, "0 bytes")
    if data[:3] == b"\xff\xd8\xff":
        try:
            return np.asarray(simplejpeg.decode_jpeg(data, "RGB"))
        except ValueError:
            pass
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))
    except Exception as error:
        raise SampleError(RejectReason.DECODE_ERROR, str(error)) from error
