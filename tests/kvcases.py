"""Configs of every make of KV cache, cut down to what counts, with vLLM 0.32.0's figures for them.

They are what its CPU backend computes by its own KVCacheSpec of the model's layers, built without
weights from the config alone (bfloat16, one rank, max_num_batched_tokens 4096).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """A model's config, cut down to what counts, and vLLM's figures for it."""

    config: dict[str, object]
    token: int
    growing: int
    requests: dict[int, int]
    state: int = 0


def gqa(layers: int, hidden: int, heads: int, kv: int, **more: object) -> dict[str, object]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


CASES = {
    "GQA, explicit head_dim": Case(
        gqa(28, 1024, 16, 8, model_type="qwen3", head_dim=128),
        114688,
        114688,
        {4096: 469763840, 32768: 3758110720},
    ),
    "GQA, a window that is switched off": Case(
        gqa(28, 1536, 12, 2, model_type="qwen2_vl", sliding_window=32768, use_sliding_window=False),
        28672,
        28672,
        {4096: 117440568},
    ),
    "MHA, no num_key_value_heads": Case(
        {
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
        },
        524288,
        524288,
        {4096: 2147483648},
    ),
    "MLA": Case(
        gqa(27, 2048, 16, 16, model_type="deepseek_v2", kv_lora_rank=512, qk_rope_head_dim=64),
        31104,
        31104,
        {4096: 127402060, 32768: 1019216480},
    ),
    "sliding window in every layer": Case(
        gqa(32, 4096, 32, 8, model_type="mistral", sliding_window=4096),
        131072,
        0,
        {4096: 553648128, 32768: 1090519040},
    ),
    "sliding 5:1": Case(
        gqa(26, 1152, 4, 1, model_type="gemma3_text", head_dim=256, sliding_window=512),
        26624,
        4096,
        {4096: 120586240, 32768: 250609664},
    ),
    "sliding 1:1": Case(
        gqa(
            36,
            2880,
            64,
            8,
            model_type="gpt_oss",
            head_dim=64,
            sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 18,
        ),
        73728,
        36864,
        {4096: 306708992, 32768: 1368393964},
    ),
    "chunked local": Case(
        gqa(48, 5120, 40, 8, model_type="llama4_text", head_dim=128, no_rope_layers=[]),
        196608,
        49152,
        {4096: 805307136, 32768: 3422555328},
    ),
    "shared layers": Case(
        gqa(
            35,
            2048,
            8,
            2,
            model_type="gemma3n_text",
            head_dim=256,
            sliding_window=512,
            num_kv_shared_layers=15,
        ),
        40960,
        8192,
        {4096: 171966464, 32768: 423624704},
    ),
    "hybrid with Mamba 1": Case(
        gqa(
            32,
            4096,
            32,
            8,
            model_type="jamba",
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_conv=4,
            mamba_d_state=16,
            mamba_expand=2,
            sliding_window=None,
        ),
        16384,
        16384,
        {4096: 125829120, 32768: 595591168},
        state=16056320,
    ),
    "hybrid with Mamba 2 by a pattern": Case(
        gqa(
            52,
            4096,
            32,
            8,
            model_type="nemotron_h",
            attention_head_dim=128,
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=64,
            n_groups=8,
            ssm_state_size=128,
            conv_kernel=4,
        ),
        16384,
        16384,
        {4096: 415237680, 8192: 490735440},
        state=102137856,
    ),
    "hybrid with Mamba 2 by layer types": Case(
        gqa(
            40,
            4096,
            32,
            8,
            model_type="granitemoehybrid",
            layer_types=[
                "attention" if index in (5, 15, 25, 35) else "mamba" for index in range(40)
            ],
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_n_groups=1,
            mamba_d_state=128,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
        16384,
        16384,
        {4096: 585107640, 32768: 1056968640},
        state=152819712,
    ),
    "hybrid with gated delta net by an interval": Case(
        gqa(
            48,
            2048,
            16,
            2,
            model_type="qwen3_next",
            head_dim=256,
            full_attention_interval=4,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_value_head_dim=128,
        ),
        24576,
        24576,
        {4096: 283116600, 32768: 990908100},
        state=77266944,
    ),
    "attention and Mamba 2 side by side": Case(
        gqa(
            6,
            512,
            8,
            4,
            model_type="falcon_h1",
            head_dim=64,
            mamba_d_conv=4,
            mamba_d_head=64,
            mamba_d_state=64,
            mamba_n_heads=16,
            mamba_n_groups=1,
        ),
        6144,
        6144,
        {4096: 33030144, 32768: 209977344},
        state=1614336,
    ),
    "hybrid layers among Mamba 2": Case(
        gqa(
            12,
            512,
            8,
            8,
            model_type="zamba2",
            attention_head_dim=128,
            layers_block_type=[*["mamba"] * 5, "hybrid"] * 2,
            mamba_d_conv=4,
            mamba_d_state=64,
            mamba_expand=2,
            mamba_ngroups=1,
            n_mamba_heads=16,
        ),
        8192,
        8192,
        {4096: 52428800, 32768: 287309824},
        state=3228672,
    ),
    "short convolutions": Case(
        gqa(
            6,
            512,
            8,
            4,
            model_type="lfm2",
            conv_L_cache=3,
            conv_dim=512,
            layer_types=["conv", "conv", "full_attention"] * 2,
        ),
        2048,
        2048,
        {4096: 9437184, 32768: 68157440},
        state=8192,
    ),
    "larger heads in full layers": Case(
        gqa(
            12,
            512,
            8,
            4,
            model_type="gemma4_text",
            head_dim=64,
            global_head_dim=128,
            num_global_key_value_heads=2,
            sliding_window=512,
        ),
        14336,
        4096,
        {4096: 61341696, 32768: 184025088},
    ),
    "more heads in windowed layers": Case(
        gqa(
            6,
            512,
            8,
            4,
            model_type="mimo_v2_flash",
            head_dim=192,
            v_head_dim=128,
            swa_num_key_value_heads=8,
            swa_head_dim=192,
            swa_v_head_dim=128,
            hybrid_layer_pattern=[0, 1, 1, 1, 1, 0],
            sliding_window=128,
            attention_chunk_size=128,
        ),
        25600,
        5120,
        {4096: 107479040, 32768: 256901120},
    ),
    "latent attention that vLLM expands": Case(
        gqa(
            4,
            512,
            8,
            8,
            model_type="minicpm3",
            kv_lora_rank=256,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
        ),
        12288,
        12288,
        {4096: 50331648, 32768: 402653184},
    ),
    "multi-query": Case(
        {
            "model_type": "falcon",
            "num_hidden_layers": 4,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "multi_query": True,
        },
        1024,
        1024,
        {4096: 4194304, 32768: 33554432},
    ),
    "Mamba alone": Case(
        {
            "model_type": "mamba",
            "num_hidden_layers": 24,
            "hidden_size": 768,
            "state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
        },
        0,
        0,
        {4096: 2580480, 32768: 2580480},
        state=2580480,
    ),
}
