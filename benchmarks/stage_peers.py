"""What people write today for the same work: Ray Data, and clip-retrieval's reader.

Both decode with Pillow and prepare with transformers' fast processor, 32 images at a time where
they take batches, and encode with transformers' model on padded batches.
"""

import importlib.util
import io
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from encoder_inputs import PATCH_SIZE
from padded_reference import PaddedReference
from PIL import Image
from ray.data import ActorPoolStrategy
from stage_meter import Events

from encoder.batch import PackedBatch
from encoder.geometry import Geometry
from encoder.infer import load_encoder
from pipeline.config import PreprocessConfig
from pipeline.packing import group_images, make_pack
from pipeline.preprocess import prepare, resolve_kernel
from pipeline.records import RawSample, SampleId

BATCH = 32
GEOMETRY = Geometry(patch_size=PATCH_SIZE, max_num_patches=256)


# --- Ray Data, as it is written by hand --------------------------------------------------------


class Process:
    def __init__(self) -> None:
        from transformers import Siglip2ImageProcessor

        torch.set_num_threads(1)
        self._processor = Siglip2ImageProcessor(patch_size=PATCH_SIZE, max_num_patches=256)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs = self._processor(images=list(map(_image, batch["jpg"])), return_tensors="np")
        return {"key": batch["__key__"], **inputs}


def _image(value: bytes | np.ndarray) -> Image.Image:
    """An RGB image of a file's bytes, or of the pixels that Ray Data's decoder makes of them."""
    image = Image.open(io.BytesIO(value)) if isinstance(value, bytes) else Image.fromarray(value)
    return image.convert("RGB")


class Encode:
    def __init__(self, checkpoint: Path | None, events: Path) -> None:
        torch.set_num_threads(1)
        self._events, self._model = Events(events), None
        if checkpoint is not None:
            self._model = PaddedReference(checkpoint, device="cpu", dtype=torch.float32)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        names = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
        inputs = {name: torch.tensor(batch[name]) for name in names}  # copies, as to a GPU
        images = len(batch["key"])
        vectors = self._model.encode(inputs) if self._model else np.ones((images, 192), np.float32)
        self._events.done(images)
        return {"key": batch["key"], "embedding": vectors}


def ray_data(
    folder: Path, output: Path, preprocessors: int, *, encoder: bool, decoder: bool | None = None
) -> dict[str, Any]:
    start_ray(preprocessors)
    start = time.perf_counter()
    rows = _read(folder, decoder=decoder).map_batches(
        Process, batch_size=BATCH, compute=ActorPoolStrategy(size=preprocessors), num_cpus=1
    )
    rows = rows.map_batches(
        Encode,
        fn_constructor_args=(folder / "checkpoint" if encoder else None, output / "events"),
        batch_size=BATCH,
        compute=ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    rows.write_parquet(str(output / "rows"))
    return {"seconds": time.perf_counter() - start}


# --- Ray Data around embedmill's own functions -------------------------------------------------


class Pack:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._config, self._kernel = PreprocessConfig(), resolve_kernel("auto")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        samples = [
            RawSample(id=SampleId(shard="", key=key), index=index, member="", image=data)
            for index, (key, data) in enumerate(zip(batch["__key__"], batch["jpg"], strict=True))
        ]
        patched = (
            prepare(sample, self._config, geometry=GEOMETRY, kernel=self._kernel)
            for sample in samples
        )
        packs = [
            make_pack(g).batch for g in group_images(patched, token_budget=16384, look_ahead=64)
        ]
        rows = {name: _column([getattr(p, name) for p in packs]) for name in ARRAYS}
        return {**rows, "keys": _column([[id_.key for id_ in p.ids] for p in packs])}


ARRAYS = ("pixel_values", "spatial_shapes", "cu_seqlens", "source_sizes")


def _column(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class EncodePacks:
    def __init__(self, checkpoint: Path, events: Path) -> None:
        torch.set_num_threads(1)
        self._events, self._encoder = Events(events), load_encoder(checkpoint, device="cpu")

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        arrays = {name: np.ascontiguousarray(row[name]) for name in ARRAYS}
        vectors = self._encoder(PackedBatch(**arrays, ids=tuple(row["keys"])))
        self._events.done(len(vectors))
        vectors = np.asarray(vectors)
        return [{"key": k, "embedding": v} for k, v in zip(row["keys"], vectors, strict=True)]


def ray_data_packed(folder: Path, output: Path, preprocessors: int) -> dict[str, Any]:
    start_ray(preprocessors)
    start = time.perf_counter()
    packs = _read(folder).map_batches(
        Pack, batch_size=64, compute=ActorPoolStrategy(size=preprocessors), num_cpus=1
    )
    rows = packs.flat_map(
        EncodePacks,
        fn_constructor_args=(folder / "checkpoint", output / "events"),
        compute=ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    rows.write_parquet(str(output / "rows"))
    return {"seconds": time.perf_counter() - start}


def start_ray(preprocessors: int) -> None:
    """None; a local Ray with a logical CPU for each actor and one for the tasks that read."""
    ray.init(
        address="local",
        num_cpus=preprocessors + 2,
        object_store_memory=1 << 30,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False


def _read(folder: Path, *, decoder: bool | None = None) -> Any:
    """The shards' samples: files as bytes, or where `decoder` is True as Ray Data decodes them."""
    shards = sorted(str(path) for path in (folder / "shards").glob("*.tar"))
    return ray.data.read_webdataset(shards, decoder=decoder)


# --- clip-retrieval's reader -------------------------------------------------------------------


def clip_retrieval(folder: Path, output: Path, preprocessors: int) -> dict[str, Any]:
    """Its WebDataset reader in worker processes, and the padded model in this one."""
    from transformers import Siglip2ImageProcessor

    torch.set_num_threads(1)
    processor = Siglip2ImageProcessor(patch_size=PATCH_SIZE, max_num_patches=256)

    def preprocess(image: Image.Image) -> dict[str, torch.Tensor]:
        inputs = processor(images=image.convert("RGB"), return_tensors="pt")
        return {name: tensor[0] for name, tensor in inputs.items()}

    model = PaddedReference(folder / "checkpoint", device="cpu", dtype=torch.float32)
    events, rows = Events(output / "events"), []
    start = time.perf_counter()
    reader = _reader_module().WebdatasetReader(
        sampler=lambda urls: urls,
        preprocess=preprocess,
        tokenizer=None,
        input_dataset=sorted(str(path) for path in (folder / "shards").glob("*.tar")),
        batch_size=BATCH,
        num_prepro_workers=preprocessors,
        enable_text=False,
    )
    for batch in reader:
        rows.append(model.encode(batch["image_tensor"]))
        events.done(len(rows[-1]))
    np.save(output / "rows.npy", np.concatenate(rows))
    return {"seconds": time.perf_counter() - start}


def _reader_module() -> Any:
    """The reader alone: the package's own import needs its web server and index libraries."""
    package = importlib.util.find_spec("clip_retrieval")
    if package is None or not package.submodule_search_locations:
        raise ImportError("no module named clip_retrieval")
    path = Path(package.submodule_search_locations[0]) / "clip_inference" / "reader.py"
    spec = importlib.util.spec_from_file_location("clip_retrieval_reader", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no reader in {path.parent.parent}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
