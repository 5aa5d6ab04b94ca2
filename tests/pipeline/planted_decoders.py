"""What a decoder may do to its process, by the name of the member that it is given."""

import ctypes
import os
import sys
import time
from dataclasses import replace

import numpy as np

from pipeline.preprocess import prepare


def planted(sample, config, *, geometry, kernel):
    if sample.member == "segfault":
        ctypes.string_at(0)
    if sample.member == "abort":
        os.abort()
    if sample.member == "hang":
        ctypes.PyDLL(None).sleep(10_000)  # in C, holding the interpreter lock
    if sample.member == "exit":
        os._exit(3)
    if sample.member == "memory":
        np.ones(config.max_image_pixels * 1000, np.uint8)
    if sample.member == "bug":
        raise KeyError("ours")
    if sample.member == "noise":
        os.write(1, b"noise on fd 1\n")
        os.write(2, b"noise on fd 2\n")
        print("noise")
        print("noise", file=sys.stderr, flush=True)
    if sample.member == "sleep":
        time.sleep(0.2)
    patched = prepare(sample, config, geometry=geometry, kernel=kernel)
    return replace(patched, metadata={"pid": os.getpid()})
