"""Cluster files and Kubernetes manifests, checked as far as that goes without a cloud.

KubeRay's schemas are 2.3 MB and not part of this repository: the tests that need them carry the
marker `corpus` and find ray.io_rayclusters.yaml and ray.io_rayjobs.yaml of its release in the folder
EMBEDMILL_KUBERAY, else in ../shared/kuberay.
"""

import copy
import os
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from pipeline.config_file import parse_config
from pipeline.memory import store_bytes

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "configs" / "cluster"
KUBERAY = Path(os.environ.get("EMBEDMILL_KUBERAY", ROOT.parent / "shared" / "kuberay"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# --- Ray's own cluster launcher


def launcher_file(cloud):
    return yaml.safe_load((CLUSTER / f"{cloud}-spot.yaml").read_text())


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_rays_own_validation_accepts_the_cluster_file(cloud):
    validate_config(prepare_config(launcher_file(cloud)))


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_rays_own_validation_would_see_a_mistake(cloud):
    config = launcher_file(cloud)
    config["available_node_types"]["gpu"]["max_wrokers"] = 3
    with pytest.raises(jsonschema.ValidationError, match="max_wrokers"):
        validate_config(prepare_config(config))


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_cluster_files_shrink_to_a_head_on_demand(cloud):
    config = launcher_file(cloud)
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0}
    assert types["gpu"]["resources"]["GPU"] == 1
    assert "GPU" not in types["cpu"]["resources"]
    for name, node_type in types.items():
        spot = node_type["node_config"]
        market = spot.get("InstanceMarketOptions", {}).get("MarketType", "")
        model = spot.get("scheduling", {}).get("provisioningModel", market)
        assert (model.lower() == "spot") == (name != "head")
        assert node_type.get("min_workers", 0) == 0
    assert config["max_workers"] == types["gpu"]["max_workers"] + types["cpu"]["max_workers"]


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_nothing_of_the_launchers_defaults_is_installed(cloud):
    prepared = prepare_config(launcher_file(cloud))
    commands = [*prepared["setup_commands"], *prepared["head_setup_commands"]]
    commands += prepared["worker_setup_commands"]
    assert all("google-api-python-client==" in command for command in commands)
    assert prepared["file_mounts"] == {"/home/embedmill/.ray/auth_token": "~/.ray/auth_token"}
    assert "-e RAY_AUTH_MODE=token" in prepared["docker"]["run_options"]


def test_ec2_would_understand_the_node_types():
    validate = pytest.importorskip("botocore.validate", reason="needs the extra [aws]")
    import botocore.session

    model = botocore.session.get_session().get_service_model("ec2")
    shape = model.operation_model("RunInstances").input_shape
    for node_type in launcher_file("aws")["available_node_types"].values():
        call = {**node_type["node_config"], "MinCount": 1, "MaxCount": 1}
        report = validate.ParamValidator().validate(call, shape)
        assert not report.has_errors(), report.generate_report()


# --- Kubernetes


def documents(name):
    return {d["kind"]: d for d in yaml.safe_load_all((CLUSTER / name).read_text())}


def cluster_spec(name):
    found = documents(name)
    if "RayJob" in found:
        return found["RayJob"]["spec"]["rayClusterSpec"]
    return found["RayCluster"]["spec"]


def strict_schema(name):
    """KubeRay's schema as JSON schema in which unknown fields are mistakes."""
    path = KUBERAY / f"ray.io_{name}.yaml"
    if not path.is_file():
        pytest.skip(f"KubeRay's schemas are not in {KUBERAY}")
    versions = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
    (schema,) = [v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v1"]
    return close(schema)


def close(schema):
    if isinstance(schema, dict) and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for value in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(value, dict | list):
            close(value)
    return schema


MANIFESTS = [("rayjob.yaml", "RayJob", "rayjobs"), ("raycluster.yaml", "RayCluster", "rayclusters")]


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "kind", "schema"), MANIFESTS)
def test_kuberays_schema_accepts_the_manifest_and_sees_a_mistake(file, kind, schema):
    manifest, strict = documents(file)[kind], strict_schema(schema)
    jsonschema.validate(manifest, strict)
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    wrong = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    wrong["volumeMount"] = []
    with pytest.raises(jsonschema.ValidationError, match="'volumeMount' was unexpected"):
        jsonschema.validate(manifest, strict)


def test_job_and_cluster_are_the_same_cluster():
    job = copy.deepcopy(cluster_spec("rayjob.yaml"))
    head = job["headGroupSpec"]["template"]["spec"]
    assert head["volumes"].pop() == {"name": "run", "configMap": {"name": "embedmill-run"}}
    assert head["containers"][0]["volumeMounts"].pop()["name"] == "run"
    assert job == cluster_spec("raycluster.yaml")


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", quantity).groups()
    return int(number) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30}[unit]


def pods():
    """Each group's `ray start` parameters and pod, the head's first."""
    spec = cluster_spec("rayjob.yaml")
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        yield group["rayStartParams"], group["template"]["spec"]


def test_every_pods_shared_memory_holds_its_object_store():
    for params, pod in pods():
        (shm,) = [v["emptyDir"] for v in pod["volumes"] if v["name"] == "shm"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]
        assert shm["medium"] == "Memory"
        assert int(params["object-store-memory"]) < bytes_of(shm["sizeLimit"])


def test_worker_pods_have_room_for_their_packs_and_their_preprocessors():
    run = run_configuration()
    one = run.workers.preprocessors.model_copy(update={"max": 1})
    workers = run.workers.model_copy(update={"preprocessors": one})
    packs = store_bytes(run.model_copy(update={"workers": workers}))  # of one Preprocessor
    for params, pod in list(pods())[1:]:
        limits, store = pod["containers"][0]["resources"]["limits"], params["object-store-memory"]
        assert int(limits["cpu"]) * packs < int(store)
        if "nvidia.com/gpu" in limits:  # the streams of other nodes end here; two had the packs
            assert run.packing.streams_per_encoder * packs / 2 < int(store)
        (shm,) = [v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if v["name"] == "shm"]
        assert bytes_of(shm) + (int(limits["cpu"]) << 30) < bytes_of(limits["memory"])


def test_manifests_scale_from_nothing_on_tolerated_spot_nodes():
    spec = cluster_spec("raycluster.yaml")
    assert spec["enableInTreeAutoscaling"]
    assert spec["authOptions"] == {"mode": "token"}
    gpus = []
    for group in spec["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == 0
        pod = group["template"]["spec"]
        assert any("spot" in t["key"] for t in pod["tolerations"])
        container = pod["containers"][0]
        drain = {e["name"]: e["value"] for e in container["env"]}
        assert (
            int(drain["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
            < pod["terminationGracePeriodSeconds"]
        )
        gpus.append("nvidia.com/gpu" in container["resources"]["limits"])
        assert container["image"].endswith("cuda" if gpus[-1] else "cpu")
    assert gpus == [True, False]


def run_configuration():
    text = documents("rayjob.yaml")["ConfigMap"]["data"]["run.yaml"]
    return parse_config(text, name="run.yaml of rayjob.yaml")


def test_the_job_runs_a_valid_configuration_that_fits_its_cluster():
    run, spec = run_configuration(), cluster_spec("rayjob.yaml")
    job = documents("rayjob.yaml")["RayJob"]["spec"]
    mount = spec["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"][-1]
    assert job["entrypoint"] == f"embedmill run {mount['mountPath']}/run.yaml"
    gpu, cpu = spec["workerGroupSpecs"]
    assert run.workers.encoders.max == gpu["maxReplicas"]
    cores = sum(
        g["maxReplicas"] * int(g["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        for g in (gpu, cpu)
    )
    assert run.workers.preprocessors.max + run.workers.encoders.max <= cores
    assert (
        run.packing.streams_per_encoder * run.workers.encoders.max >= run.workers.preprocessors.max
    )


# --- all of them


def test_every_cluster_runs_the_ray_and_the_image_that_are_built_here():
    pins = (ROOT / "docker" / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster_spec('raycluster.yaml')['rayVersion']}" in pins
    tags = set()
    for file in CLUSTER.glob("*.yaml"):
        tags |= set(re.findall(r"embedmill:(\S+)", file.read_text()))
    assert tags == {f"{PROJECT['version']}-cpu", f"{PROJECT['version']}-cuda"}
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert tags == set(re.findall(r"-t embedmill:(\S+)", dockerfile))


PLACEHOLDER = re.compile(r"\.example|my-|ami-0|nodeSelector|serviceAccountName|InstanceProfile")


@pytest.mark.parametrize("file", sorted(p.name for p in CLUSTER.glob("*.yaml")))
def test_every_placeholder_says_that_it_must_be_changed(file):
    lines = (CLUSTER / file).read_text().splitlines()
    for number, line in enumerate(lines):
        shown = lines[number + 1] if "nodeSelector" in line else line
        if PLACEHOLDER.search(line) and not line.lstrip().startswith("#"):
            assert "# CHANGE" in shown, f"{file}:{number + 1}: {line}"
