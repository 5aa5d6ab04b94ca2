import copy
import platform

import pytest
import torch
import torch.nn.functional as F

from encoder.linear import Linear, in_blocks, lay_out_weights


@pytest.fixture(params=[False, True], ids=["linear", "gelu"])
def layers(request):
    """The layer as torch multiplies it, and as oneDNN does."""
    torch.manual_seed(0)
    plain = Linear(48, 72, gelu=request.param).requires_grad_(False)
    laid_out = copy.deepcopy(plain)
    lay_out_weights(laid_out)
    return plain, laid_out


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines multiply by torch")
def test_weights_on_this_machine_are_laid_out(layers):
    assert [layer.laid_out for layer in layers] == [False, True]


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200, 1027])
def test_the_layout_does_not_change_the_values(layers, rows):
    plain = layers[0]
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(1))
    expected = F.linear(x.double(), plain.weight.double(), plain.bias.double())
    if plain.gelu:
        expected = F.gelu(expected, approximate="tanh")
    for layer in layers:
        assert float((layer(x) - expected).abs().max() / expected.abs().max()) <= 1e-6


def test_a_value_that_is_not_finite_stays_in_its_row(layers):
    x = torch.ones(130, 48)
    x[3, 5], x[129, 0] = torch.nan, torch.inf
    for layer in layers:
        finite = layer(x).isfinite().all(dim=1)
        assert (~finite).nonzero().flatten().tolist() == [3, 129]


def test_bfloat16_weights_stay_as_they_are():
    layer = Linear(8, 8).requires_grad_(False).to(torch.bfloat16)
    lay_out_weights(layer)
    assert not layer.laid_out


def test_blocks_have_few_sizes_and_keep_the_rows():
    sizes = set()

    def note(block: torch.Tensor) -> torch.Tensor:
        sizes.add(len(block))
        return block

    for rows in range(1, 1100, 7):
        x = torch.arange(2 * rows).view(rows, 2)
        assert torch.equal(in_blocks(note, x), x)
    assert sizes == {64, 128, 256, 512, 1024}
