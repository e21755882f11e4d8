"""As a teacher, every causal LM that transformers can build from a tiny configuration is right or raises an error."""

import contextlib

import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qsft.teacher.log_probs import check_teacher_head, teacher_log_probs

SIZES = {
    32: "hidden_size n_embd d_model embedding_size word_embed_proj_dim lru_width embed_dim attention_hidden_size",
    64: "intermediate_size ffn_dim n_inner d_ff decoder_ffn_dim encoder_ffn_dim ffn_hidden_size mlp_hidden_size "
    "shared_intermediate_size dense_intermediate_size",
    2: "num_hidden_layers n_layer num_layers n_layers decoder_layers encoder_layers num_key_value_heads n_head_kv "
    "num_experts_per_tok moe_topk num_experts_per_token multi_query_group_num first_k_dense_replace",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads num_experts "
    "num_local_experts n_routed_experts",
    8: "head_dim kv_channels state_size mamba_d_state qk_nope_head_dim qk_rope_head_dim v_head_dim rotary_dim "
    "mamba_d_head index_head_dim",
    16: "kv_lora_rank q_lora_rank moe_intermediate_size window_size expert_ffn_hidden_size",
    320: "vocab_size",
    128: "max_position_embeddings n_positions seq_length max_seq_len",
    0: "pad_token_id",
}
# So low that a head which does not know them shows.
TRANSFORMS = {"final_logit_softcapping": 3.0, "logits_soft_cap": 3.0, "logit_scale": 0.5, "logits_scaling": 4.0}
BUILD_LIMIT = 30e6


def tiny(model_type):
    """A random model of `model_type` with large weights in its head; None when no tiny configuration fits it."""
    kind = CONFIG_MAPPING[model_type]
    known = vars(kind())
    sizes = {name: size for size, names in SIZES.items() for name in names.split() if known.get(name) is not None}
    transforms = {name: value for name, value in TRANSFORMS.items() if name in known}
    config = kind(**sizes | transforms | {"is_decoder": True} if "is_decoder" in known else sizes | transforms)
    make = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        if sum(parameter.numel() for parameter in make(config).parameters()) > BUILD_LIMIT:
            return None
    torch.manual_seed(0)
    model = make(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(std=0.5)
    return model


def outcome(model_type):
    """What becomes of a teacher of this type: "not built", "rejected: …", "right" or "wrong by …"."""
    ids = torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(1))
    try:
        model = tiny(model_type)
        with torch.no_grad():
            own = model(input_ids=ids, use_cache=False).logits[:, :-1].reshape(46, -1).float().log_softmax(-1)
    except Exception as error:
        return f"not built: {type(error).__name__}"
    try:
        check_teacher_head(model, input_ids=ids)
        found = teacher_log_probs(model, None, input_ids=ids, labels=ids)
    except Exception as error:
        return f"rejected: {error}"[:120]
    if found.logps.shape != own.shape:
        return f"wrong by its shape {tuple(found.logps.shape)}"
    gap = (found.logps - own).abs().max().item()
    return "right" if gap < 1e-3 else f"wrong by {gap:.3g}"


@pytest.mark.slow
def test_every_causal_lm_is_right_or_raises_an_error(tell):
    found = {}
    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        with contextlib.redirect_stderr(None):
            found[model_type] = outcome(model_type)
    kinds = [what.split(":")[0].split(" by")[0] for what in found.values()]
    counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    tell(f"causal LMs of transformers as teachers: {counts}")
    assert {model_type: what for model_type, what in found.items() if what.startswith("wrong")} == {}
    assert counts["right"] > 60
