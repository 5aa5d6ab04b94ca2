import numpy as np
import pytest

from pipeline import resize
from pipeline.errors import ConfigError


@pytest.fixture
def cpu(monkeypatch):
    """Pretends another CPU."""

    def pretend(machine, capability):
        monkeypatch.setattr("platform.machine", lambda: machine)
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
        resize.has_uint8_kernel.cache_clear()

    yield pretend
    monkeypatch.undo()
    resize.has_uint8_kernel.cache_clear()


@pytest.mark.parametrize(
    ("machine", "capability", "kernel"),
    [
        ("x86_64", "AVX512", "torch"),
        ("x86_64", "AVX2", "torch"),
        ("x86_64", "DEFAULT", "pillow"),
        ("aarch64", "DEFAULT", "torch"),
        ("arm64", "DEFAULT", "torch"),
        ("ppc64le", "VSX", "pillow"),
    ],
)
def test_auto_is_the_kernel_that_this_cpu_has(cpu, machine, capability, kernel):
    cpu(machine, capability)
    assert resize.resolve_kernel("auto") == kernel
    assert resize.resolve_kernel("pillow") == "pillow"


def test_torch_kernel_is_refused_where_its_bytes_would_differ(cpu):
    cpu("x86_64", "DEFAULT")
    with pytest.raises(ConfigError, match=r"AVX2.*found DEFAULT on x86_64.*pillow"):
        resize.resolve_kernel("torch")


@pytest.mark.parametrize("kernel", ["torch", "pillow"])
def test_input_is_not_changed_and_not_handed_out(kernel):
    image = np.random.RandomState(0).randint(0, 256, (20, 30, 3), np.uint8)
    before = image.copy()
    for height, width in [(20, 30), (40, 8), (7, 61)]:
        found = resize.resize(image, height, width, kernel)
        assert found.shape == (height, width, 3)
        assert not np.shares_memory(found, image)
    np.testing.assert_array_equal(image, before)
