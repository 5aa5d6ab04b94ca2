"""Results of packs on their way from forward passes back to the packs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from encoder.batch import PackedBatch
from encoder.chunks import PackImage
from encoder.output import Readout
from encoder.transfer import Arrival

__all__ = ["Pending"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pending:
    """Results on their way."""

    batches: Sequence[PackedBatch]
    readout: Readout
    chunks: list[tuple[list[PackImage], Arrival]]

    def results(self) -> list[NDArray[Any]]:
        """For each pack what `Encoder` returns for it alone; waits until they are there."""
        dtype = np.dtype(self.readout.dtype)
        tokens = self.readout.vectors == "tokens"
        outputs = [
            np.empty((b.num_tokens if tokens else b.num_images, self.readout.width), dtype)
            for b in self.batches
        ]
        for images, arrival in self.chunks:
            values = arrival.wait()
            lengths = (image.length if tokens else 1 for image in images)
            for image, start in zip(images, accumulate(lengths, initial=0), strict=False):
                target = image.rows if tokens else slice(image.place, image.place + 1)
                count = target.stop - target.start
                outputs[image.pack][target] = values[start : start + count]
        return outputs
