import pytest
import torch

from encoder.budget import forward_budget, forward_bytes
from encoder.config import EncoderConfig

BASE = EncoderConfig()
SO400M = EncoderConfig(
    hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16
)
GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("free_gib", "tokens"),
    [(80, 65_536), (1, 26_379), (0.1, 2637), (0, 1)],
)
def test_half_of_the_free_memory_and_never_more_than_helps(monkeypatch, free_gib, tokens):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_gib * 2**30), 2**40))
    assert forward_budget(BASE, device=GPU, dtype=torch.bfloat16) == pytest.approx(tokens, rel=0.2)


def test_a_cpu_has_a_budget_of_its_own():
    assert forward_budget(SO400M, device=torch.device("cpu"), dtype=torch.float32) == 4096


@pytest.mark.parametrize("config", [BASE, SO400M])
def test_bytes_grow_with_what_a_block_makes(config):
    half, full = (forward_bytes(config, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert half > 2 * (2 * config.intermediate_size + 2 * config.hidden_size)
    assert half < full < 2 * half


@pytest.mark.gpu
def test_the_peak_of_a_pass_is_within_its_estimate(tmp_path, make_pack):
    from encoder.infer import load_encoder
    from encoder.seeded import write_seeded_checkpoint

    config = EncoderConfig(num_hidden_layers=2)
    folder = write_seeded_checkpoint(
        tmp_path,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=2,
        num_attention_heads=12,
    )
    encoder = load_encoder(folder, device="cuda")
    pack = make_pack([(16, 16)] * 64)
    encoder(pack)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    encoder(pack)
    peak = torch.cuda.max_memory_allocated() - before
    assert 0.5 < peak / (pack.num_tokens * forward_bytes(config, torch.bfloat16)) <= 1
