"""A drafter that was made for another model: workers go on without it until `bench` has found that it pays."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mill import Mill, json_lines
from tiny_llama import CONFIG, LAYERS

HIDDEN, INNER, HEADS, KEY_HEADS, HEAD_DIM = 64, 96, 4, 2, 16


def tiny_dflash(directory: Path) -> Path:
    """A block drafter of random weights for the tiny llama, whose card names another model."""
    mx.random.seed(3)
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "vocab_size": CONFIG["vocab_size"],
        "rope_theta": 10000.0,
        "num_target_layers": LAYERS,
        "block_size": 4,
        "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, LAYERS - 1]},
    }
    queries, keys = HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM
    matrices = {
        "fc": (HIDDEN, 2 * HIDDEN),
        "layers.0.self_attn.q_proj": (queries, HIDDEN),
        "layers.0.self_attn.k_proj": (keys, HIDDEN),
        "layers.0.self_attn.v_proj": (keys, HIDDEN),
        "layers.0.self_attn.o_proj": (HIDDEN, queries),
        "layers.0.mlp.gate_proj": (INNER, HIDDEN),
        "layers.0.mlp.up_proj": (INNER, HIDDEN),
        "layers.0.mlp.down_proj": (HIDDEN, INNER),
    }
    norms = {"hidden_norm": HIDDEN, "norm": HIDDEN, "layers.0.self_attn.q_norm": 16, "layers.0.self_attn.k_norm": 16}
    norms |= {f"layers.0.{name}_layernorm": HIDDEN for name in ("input", "post_attention")}
    tensors = {f"{name}.weight": mx.random.normal(shape) / 8 for name, shape in matrices.items()}
    tensors |= {f"{name}.weight": mx.ones((size,)) for name, size in norms.items()}
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "README.md").write_text("---\nbase_model: org/other\n---\n")
    mx.save_safetensors(str(directory / "model.safetensors"), tensors)
    return directory


def test_bench_measures_it_and_a_worker_goes_by_the_verdict(mill: Mill, tiny_model: Path) -> None:
    target = mill.folder / "target"
    shutil.copytree(tiny_model, target)
    (target / "README.md").write_text("---\nbase_model: org/tiny\nbase_model_relation: quantized\n---\n")
    drafter = tiny_dflash(mill.folder / "drafter")
    mill.environment |= {"CIDERMILL_MODEL": str(target), "CIDERMILL_DRAFTER": str(drafter)}
    prompts = mill.input([{"prompt": "one two one two one two", "max_tokens": 6}])
    done = mill.run("bench", "--prompts", prompts, "--max-tokens", 6, "--runs", 1)
    assert done.returncode == 0, done.stderr
    begin, *_, verdict = json_lines(done.stdout)
    assert (begin["drafter"], verdict["event"], verdict["drafter"]) == ("dflash", "verdict", str(drafter))
    (file,) = (mill.data_dir / "adoptions").glob("*.json")
    # Random weights guess nothing right: what their drafts are worth is made up.
    for ratio, used in ((0.5, "suffix"), (2.0, "dflash")):
        file.write_text(json.dumps({**json.loads(file.read_text()), "ratio": ratio}))
        assert mill.run("run", prompts).returncode == 0
        assert mill.requests()[-1]["drafter"] == used
    log = (mill.data_dir / "logs" / "worker.log").read_text("utf-8").splitlines()
    (line,) = [line for line in log if "without drafter" in line]
    assert line == (
        f"going on as with drafter auto, without drafter {drafter}: it was made for org/other, and {target} (org/tiny) "
        "is another model; 0.50 times the rate of plain decoding: not adopted (it takes 1.15 times, and the same "
        f"texts); to measure it again, run cidermill bench --drafter {drafter} --model {target}"
    )
