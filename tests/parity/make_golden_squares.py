"""Makes tests/data/golden/squares.json: images of transformers' SiglipImageProcessor, as digests.

Needs an environment with torchvision, and a CPU where torch has its uint8 resize kernel:

    python tests/parity/make_golden_squares.py

Made with transformers 5.24.0, torch 2.14.1, torchvision 0.29.1 and Pillow 13.0.0.
"""

import json

import torch
from golden_images import GOLDEN, RESAMPLES, SQUARES, digest, images
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        raise SystemExit(f"torch resizes in float on this CPU ({capability}): not the reference")
    entries = {}
    for name, image in images():
        entries[name] = {}
        for code, resample in RESAMPLES.items():
            for side, patch_size in SQUARES:
                size = {"height": side, "width": side}
                processor = SiglipImageProcessor(size=size, resample=code)
                floats = processor([image], return_tensors="pt")["pixel_values"][0]
                pixels = (floats * 127.5 + 127.5).round().to(torch.uint8)
                if not torch.equal((pixels.float() - 127.5) / 127.5, floats):
                    raise SystemExit("the processor's values are not (byte - 127.5) / 127.5")
                whole = side // patch_size * patch_size
                array = pixels[:, :whole, :whole].permute(1, 2, 0).numpy()
                entries[name][f"{side} {resample}"] = digest(array)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(e)}" for name, e in entries.items())
    (GOLDEN / "squares.json").write_text(f"{{\n{lines}\n}}\n")
    print(f"{len(entries)} images in {GOLDEN / 'squares.json'}")


if __name__ == "__main__":
    main()
