"""The run configuration as frozen, validated records. Every key that a person types is here."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pipeline.config_types import Fraction, PositiveInt, Section, StoreOptions, Url

MAX_SHARD_OUTPUT_BYTES = 4 << 30  # one conditional put; multipart uploads have no create-only mode


class MetadataColumn(Section):
    """A column of the output that is taken from the sample's other members."""

    name: str
    """Column name in the output."""
    member: str = "json"
    """Extension of the member that holds it, without the dot (json, txt, cls ...)."""
    field: str | None = None
    """Field of a JSON member, dots go into nested objects; null takes the whole member as text."""
    type: Literal["string", "int64", "float64", "bool", "json"] = "string"
    """Type of the column; json keeps nested objects and lists as JSON text."""
    required: bool = False
    """A sample without it is rejected (missing_metadata); otherwise null and a counted warning."""


class InputConfig(Section):
    """What is read. One of shards and shards_file must be given, or both."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["shards"]}, {"required": ["shards_file"]}]}
    )

    shards: Url | list[Url] = Field(default_factory=list, repr=False)
    """WebDataset tar shards: one or a list of paths or URLs, with brace ranges and globs."""
    shards_file: Url | None = Field(default=None, repr=False)
    """Text file (path or URL), one specification a line; empty lines and # comments are skipped."""
    key_split: Literal["first_dot", "last_dot"] = "first_dot"
    """Where a member's base name ends and its extension begins. first_dot is WebDataset's rule."""
    image_extensions: list[str] = Field(default_factory=list)
    """What follows the key of the member that is the image (jpg, rgb.png); empty: any image format.
    Needed where samples hold several images, a photo and a mask say; the others are left alone."""
    on_truncated: Literal["fail", "keep"] = "fail"
    """keep publishes what was whole in a truncated tar and marks the output incomplete."""
    metadata: list[MetadataColumn] = Field(default_factory=list)
    """Further columns of the output; empty: none."""

    @model_validator(mode="after")
    def _some_shards(self) -> Self:
        if not self.shards and self.shards_file is None:
            raise ValueError("shards or shards_file must name at least one shard")
        for extension in self.image_extensions:
            if not extension or extension.startswith(".") or extension != extension.lower():
                raise ValueError(
                    f"image_extensions must be lower case without the first dot, got {extension!r}"
                )
        names = [column.name for column in self.metadata]
        reserved = {"key", "shard", "index", "embedding", "tokens", "truncated"}
        reserved |= {"height", "width", "grid_h", "grid_w"}
        clash = [name for name in names if name in reserved or names.count(name) > 1]
        if clash:
            raise ValueError(f"metadata column {clash[0]!r} is taken; choose another name")
        return self


class OutputConfig(Section):
    """What is written, and where."""

    path: Url = Field(repr=False)
    """Folder or storage URL. It belongs to one run; the same run continues in it."""
    vectors: Literal["pooled", "mean", "tokens"] = "pooled"
    """pooled: the pooling head's vector; mean: of an image's tokens; tokens: all of them."""
    layers: list[int] | None = None
    """For mean and tokens: -1 leaves the last block, -2 the one before, 0 enters the first. Several
    are joined value by value. null: what the checkpoint names (vision_feature_layer), else [-1]."""
    final_norm: bool = True
    """For mean and tokens: the last layer goes through the tower's final norm. Others never do."""
    dtype: Literal["float16", "float32"] = "float16"
    """float16 halves the output; unit vectors lose about 3e-4 of their length to it."""
    normalize: bool = True
    """Divide each vector by its L2 norm, as similarity search expects. Tokens are left as they are.
    """

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> Self:
        useless = {"layers", "final_norm"} if self.vectors == "pooled" else set()
        if self.vectors == "tokens" and self.normalize:
            useless = {"normalize"}
        if given := useless & self.model_fields_set:
            raise ValueError(f"{min(given)} has no effect on vectors: {self.vectors}; leave it out")
        if self.layers == []:
            raise ValueError("layers must name at least one layer")
        return self


class ModelConfig(Section):
    """Which weights encode, and how they compute."""

    checkpoint: Url = Field(repr=False)
    """Folder with config.json and *.safetensors, Hugging Face id, or storage URL."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id; the run pins what it resolved to."""
    prefix: str | None = None
    """What comes before the vision tower's tensor names in a larger model; null finds it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 where Encoders have a GPU, float32 on CPU."""
    attention: Literal["auto", "reference", "sdpa", "varlen"] = "auto"
    """auto: varlen on CUDA, sdpa on CPU. What it became is logged and recorded."""
    forward_tokens: PositiveInt | None = None
    """Tokens that the device computes at once at most; larger packs are cut. null: on CUDA what
    half of the free memory holds, at most 65,536; on a CPU 4,096."""


class PreprocessConfig(Section):
    """How an image file becomes patches."""

    max_num_patches: PositiveInt | None = None
    """Patches per image at most, for NaFlex checkpoints, which were trained up to 1024. null: what
    the checkpoint's preprocessor_config.json says, 256 in all that are published."""
    decode: Literal["exact", "reduced"] = "exact"
    """reduced: JPEG scaled in the decoder, never below twice the target; faster, pixels change."""
    resize_kernel: Literal["torch", "pillow", "auto"] = "auto"
    """auto: torch's uint8 kernel where the CPU has it (AVX2, arm64), Pillow elsewhere; recorded."""
    exif_orientation: bool = True
    """Turn photos as their EXIF orientation says; transformers leaves that to the caller."""
    background: Literal["white", "black", "gray", "drop"] = "white"
    """What transparent pixels are laid on; drop ignores alpha and shows what lies hidden."""
    icc: Literal["ignore", "apply"] = "ignore"
    """apply converts embedded colour profiles to sRGB; off for parity with transformers."""
    truncated_images: Literal["reject", "accept"] = "reject"
    """accept keeps what was decoded of a cut file and marks its row."""
    max_image_pixels: PositiveInt = 178_956_970
    """Checked in the header, before decoding. The default is where Pillow refuses; decoders need 3
    bytes for each pixel (JPEG), 7 (most), 16 (WebP): up to 2.7 GiB for an image at the limit."""
    max_image_bytes: PositiveInt = 256 << 20
    """A larger file is rejected unread: each Preprocessor holds a whole file in memory."""
    decode_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds one image may take. An honest photo at the pixel limit needs 4 to 16."""


class PackingConfig(Section):
    """How images share a pack. Nothing here changes a vector."""

    token_budget: PositiveInt = 16_384
    """Tokens in one pack at most: 64 images of 256 patches, 12.6 MB of uint8."""
    look_ahead: Annotated[int, Field(ge=0)] = 64
    """Images held back to fill a pack. 0 packs in arrival order."""
    streams_per_encoder: PositiveInt = 128
    """Shards an Encoder has open at most: one GPU eats the streams of 15 to 100 cores."""
    packs_in_flight: PositiveInt = 2
    """Packs of a stream that are finished and wait to be encoded; with so many it waits."""


class EncoderPool(Section):
    """The actors that run the model."""

    min: Annotated[int, Field(ge=0)] = 1
    """So many are kept while there are shards for them."""
    max: PositiveInt = 1
    """As many as there are GPUs that the run may use."""
    num_gpus: Annotated[float, Field(ge=0)] = 1
    """GPUs of one Encoder, as Ray counts them; 0 on machines without."""
    num_cpus: Annotated[float, Field(gt=0)] = 1
    """Cores of one Encoder, as Ray counts them; on CPU also its threads."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: cuda where num_gpus > 0, else cpu."""
    accelerator_type: str | None = None
    """Ray's name of a GPU model (H200, L4 ...): no other will do."""
    label_selector: dict[str, str] = Field(default_factory=dict)
    """Ray node labels that the node must have."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        _check_order(self.min, self.max)
        return self


class PreprocessorPool(Section):
    """The actors that read shards and prepare images."""

    min: PositiveInt = 1
    """The run begins with so many."""
    max: PositiveInt = 2
    """Decoding is the limit of most runs: the cores that there are, less one for each Encoder."""
    num_cpus: Annotated[float, Field(gt=0)] = 1
    """Cores of one Preprocessor, as Ray counts them. It works in one thread."""
    label_selector: dict[str, str] = Field(default_factory=dict)
    """Ray node labels that the node must have; replaces the placement near Encoders."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        _check_order(self.min, self.max)
        return self


class WorkersConfig(Section):
    """Sizes and places of the two pools of actors."""

    encoders: EncoderPool = Field(default_factory=EncoderPool)
    preprocessors: PreprocessorPool = Field(default_factory=PreprocessorPool)
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Autoscaled GPU nodes take minutes; after this the actors that found no place are named."""


class RayConfig(Section):
    """Which Ray is used."""

    address: str | None = None
    """host:port, auto or ray://...; null: the job's cluster, or a Ray of its own on this machine.
    """


class StorageConfig(Section):
    """Options by scheme, for obstore. Credentials belong in the environment, a profile or a role.

    A secret that is given here all the same is never written or shown, only handed to workers.
    """

    s3: StoreOptions = Field(default_factory=dict)
    """Options of obstore's S3Store (endpoint, region, skip_signature ...) and of its HTTP client
    (proxy_url, root_certificate ...); profile names an AWS profile, which needs the extra [aws]."""
    gs: StoreOptions = Field(default_factory=dict)
    """Options of obstore's GCSStore (service_account ...) and of its HTTP client."""
    az: StoreOptions = Field(default_factory=dict)
    """Options of obstore's AzureStore (account_name ...) and of its HTTP client."""
    http: StoreOptions = Field(default_factory=dict)
    """Options of obstore's HTTP client (proxy_url, root_certificate ...)."""
    range_mib: Annotated[int, Field(ge=1, le=64)] = 8
    """Bytes of one ranged GET."""
    read_ahead: Annotated[int, Field(ge=0, le=16)] = 2
    """Ranges fetched ahead of the decoder."""
    retries: Annotated[int, Field(ge=0, le=20)] = 6
    """Tries again for transient errors, with backoff from 0.2 s doubling to 20 s."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """One request, its body included: 8 MiB at 70 kB/s. Above 64 MiB a second more for each MiB."""


class LimitsConfig(Section):
    """When a run stops by itself, and when it gives up a shard."""

    max_reject_share: Fraction = 0.5
    """Of all images read, once min_images_for_share were; above it the run stops."""
    min_images_for_share: PositiveInt = 1000
    """Before so many images were read the share says little."""
    max_consecutive_rejects: PositiveInt = 500
    """In one shard's stream; a wrong setting rejects everything."""
    shard_attempts: PositiveInt = 3
    """Then the shard is quarantined and the run goes on without it."""
    stall_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds without a pack after which a worker is taken to hang, ended and replaced."""


class RunConfig(Section):
    """A whole run: one YAML file. Unknown keys are refused, values are never converted."""

    input: InputConfig
    output: OutputConfig
    model: ModelConfig
    preprocess: PreprocessConfig = Field(default_factory=PreprocessConfig)
    packing: PackingConfig = Field(default_factory=PackingConfig)
    workers: WorkersConfig = Field(default_factory=WorkersConfig)
    ray: RayConfig = Field(default_factory=RayConfig)
    storage: StorageConfig = Field(default_factory=StorageConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)

    @model_validator(mode="after")
    def _one_image_fits(self) -> Self:
        patches, budget = self.preprocess.max_num_patches or 1, self.packing.token_budget
        if patches > budget:
            raise ValueError(
                f"packing.token_budget must be at least preprocess.max_num_patches ({patches}), "
                f"got {budget}: a single image would not fit a pack"
            )
        return self

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """What `workers.encoders.device: auto` means; the same on every node."""
        pool = self.workers.encoders
        if pool.device != "auto":
            return pool.device
        return "cuda" if pool.num_gpus > 0 else "cpu"

    @property
    def model_dtype(self) -> Literal["float32", "bfloat16"]:
        if self.model.dtype != "auto":
            return self.model.dtype
        return "bfloat16" if self.device == "cuda" else "float32"


def _check_order(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"min must be at most max, got min {low} and max {high}")
