"""Imports point one way, and low modules stay light.

A process that imports torch pays some 200 MB and seconds at start, one that imports Ray pays more:
what runs on every CPU worker or at every start of the command line must not pull them in unasked.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A module imports from strictly lower lines only. A name here may be ahead of its file.
LAYERS = [
    line.split()
    for line in (
        "encoder.config encoder.grid encoder.linear encoder.pack_layout encoder.position encoder.transfer",
        "encoder.attention encoder.budget encoder.causes encoder.geometry encoder.tensors",
        "encoder.diagnosis encoder.output encoder.processor",
        "encoder.batch encoder.model encoder.source",
        "encoder.checkpoint encoder.chunks",
        "encoder.non_finite encoder.pending encoder.seeded encoder.weights pipeline.records",
        "encoder.infer pipeline.errors pipeline.scaling",
        # bytes, names and places
        "pipeline.colour pipeline.compression pipeline.extent pipeline.jpeg_header pipeline.keys pipeline.logs "
        "pipeline.orientation pipeline.parallel pipeline.report_health pipeline.report_plots "
        "pipeline.report_times pipeline.words pipeline.report_worst "
        "pipeline.retry pipeline.sniff pipeline.tar_header pipeline.urls",
        "pipeline.config_types",
        "pipeline.config pipeline.heartbeat pipeline.localfs pipeline.pillow_image pipeline.ranged pipeline.resize "
        "pipeline.store_errors pipeline.tar",
        "pipeline.config_file pipeline.config_reference pipeline.image_header pipeline.memory pipeline.metadata pipeline.stores "
        "pipeline.tables",
        # the parts of the stage
        "pipeline.decode pipeline.objectstore pipeline.packing pipeline.report_charts pipeline.shards",
        "pipeline.preprocess pipeline.storage",
        "pipeline.checkpoint_cache pipeline.decoder_child pipeline.footer pipeline.manifest "
        "pipeline.object_file pipeline.passes pipeline.report_pictures pipeline.specs "
        "pipeline.spool",
        "pipeline.quarantine pipeline.ray_data pipeline.run_record pipeline.writer",
        "pipeline.clean pipeline.inspection pipeline.output_size pipeline.reject_limits "
        "pipeline.verify_shard",
        "pipeline.stage",
        "pipeline.forecast pipeline.run_encoder pipeline.verify",
        "pipeline.reembed pipeline.report_facts pipeline.report_sample pipeline.verify_view",
        # the report of an output
        "pipeline.report pipeline.report_run_charts pipeline.report_sample_charts",
        "pipeline.report_summary",
        "pipeline.report_page",
        "pipeline.actors pipeline.inspection_view pipeline.work",
        "pipeline.forecast_view",
        # the cluster
        "pipeline.cluster pipeline.demo pipeline.metrics pipeline.pace pipeline.pools pipeline.workers",
        "pipeline.observer pipeline.progress",
        "pipeline.driver",
        # the program
        "pipeline.cli_options",
        "pipeline.cli_input",
        "pipeline.cli_output",
        "pipeline.cli",
        "pipeline.__main__",
    )
]

IMPORT_RAY = {
    "pipeline.actors",
    "pipeline.cluster",
    "pipeline.driver",
    "pipeline.metrics",
    "pipeline.observer",
    "pipeline.pools",
    "pipeline.workers",
}
IMPORT_TORCH = {
    "encoder.attention",
    "encoder.budget",
    "encoder.infer",
    "encoder.linear",
    "encoder.model",
    "encoder.non_finite",
    "encoder.position",
    "encoder.transfer",
    "encoder.weights",
    "pipeline.actors",
    "pipeline.passes",
    "pipeline.resize",
    "pipeline.run_encoder",
}
NEVER_IN_ENCODER = {"pipeline", "ray", "yaml", "obstore", "pyarrow", "PIL", "pydantic", "typer"}

# What may be in memory once a module is imported, by itself or by what it imports.
LOADS_RAY = IMPORT_RAY
LOADS_TORCH = (
    IMPORT_TORCH
    | LOADS_RAY
    | {"encoder.pending", "pipeline.preprocess", "pipeline.decoder_child", "pipeline.stage"}
    | {
        "pipeline.forecast",
        "pipeline.forecast_view",
        "pipeline.ray_data",
        "pipeline.reembed",
        "pipeline.work",
        "pipeline.pace",
        "pipeline.progress",
        "pipeline.inspection",
        "pipeline.inspection_view",
    }
)
CONTRACTS = [
    "encoder.grid",
    "encoder.pack_layout",
    "encoder.causes",
    "encoder.diagnosis",
    "encoder.batch",
    "pipeline.records",
    "pipeline.errors",
]


def find_modules():
    """Source paths by module name, package files left out."""
    paths = [path for package in ("encoder", "pipeline") for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name: path for name, path in modules.items() if not name.endswith("__init__")}


MODULES = find_modules()
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


def imported(source):
    """Absolute names of all modules that a source imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"relative import in line {node.lineno}"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full & LAYER_OF.keys() or {node.module}
    return names


def wrong_imports(name, source):
    """Our modules that this one imports although they are not on a lower layer."""
    own = {module for module in imported(source) if module.split(".")[0] in ("encoder", "pipeline")}
    return sorted(module for module in own if LAYER_OF.get(module, 999) >= LAYER_OF[name])


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_from_lower_layers_only(name):
    assert name in LAYER_OF, f"give {name} its place in LAYERS in {Path(__file__).name}"
    wrong = wrong_imports(name, MODULES[name].read_text())
    assert not wrong, f"{name} (layer {LAYER_OF[name]}) imports {wrong}, which are not below it"


def test_the_layers_name_each_module_once():
    names = [name for layer in LAYERS for name in layer]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from pipeline.errors import ConfigError", []),
        ("import numpy", []),
        ("from pipeline.cli import main", ["pipeline.cli"]),
        ("from pipeline import cli", ["pipeline.cli"]),
        ("import pipeline.stage", ["pipeline.stage"]),
        ("def f():\n    from pipeline.keys import split", ["pipeline.keys"]),
        ("from pipeline.nowhere import x", ["pipeline.nowhere"]),
    ],
)
def test_upward_imports_are_seen(source, wrong):
    assert wrong_imports("pipeline.urls", source) == wrong


@pytest.mark.parametrize(("library", "allowed"), [("ray", IMPORT_RAY), ("torch", IMPORT_TORCH)])
def test_heavy_libraries_are_imported_by_few(library, allowed):
    users = {
        name
        for name, path in MODULES.items()
        if any(module.split(".")[0] == library for module in imported(path.read_text()))
    }
    assert users <= allowed


def test_the_encoder_is_a_library_of_its_own():
    for name, path in MODULES.items():
        if name.startswith("encoder."):
            roots = {module.split(".")[0] for module in imported(path.read_text())}
            assert not roots & NEVER_IN_ENCODER, name


PROBE = """
import importlib, sys
forbidden = sys.argv[1].split()
for name in sys.argv[2:]:
    importlib.import_module(name)
    found = [module for module in forbidden if module in sys.modules]
    if found:
        sys.exit(f"importing {name} loads {found}")
"""


def load(modules, forbidden):
    """What a fresh interpreter says that imports the modules one by one; empty if all is well."""
    command = [sys.executable, "-c", PROBE, forbidden, *modules]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stderr


def existing(names):
    return sorted(set(names) & MODULES.keys())


def test_contracts_load_little_more_than_numpy():
    assert load(CONTRACTS, "torch ray yaml pyarrow pydantic obstore PIL") == ""


def test_light_modules_load_neither_torch_nor_ray():
    assert load(existing(MODULES.keys() - LOADS_TORCH), "torch ray") == ""


def test_modules_that_work_in_a_plain_loop_load_no_ray():
    assert load(existing(MODULES.keys() - LOADS_RAY), "ray") == ""


def test_the_encoder_loads_nothing_of_the_pipeline():
    encoder = [name for name in MODULES if name.startswith("encoder.")]
    assert load(sorted(encoder), "pipeline ray obstore pyarrow") == ""


def test_no_module_loads_the_compiler_of_torch():
    """Parts of torch pull it in: 1.3 s of CPU and 71 MiB in each actor."""
    assert load(sorted(MODULES), "torch._dynamo sympy") == ""


def test_the_probe_sees_what_is_loaded():
    assert "importing pipeline.resize loads ['torch']" in load(["pipeline.resize"], "ray torch")
