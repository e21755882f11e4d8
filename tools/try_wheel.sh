#!/usr/bin/env bash
# Install a wheel as a user does, in an environment of its own and far from the checkout, and try it without a network.
#   bash tools/try_wheel.sh dist/qsft-*.whl
set -euo pipefail
wheel=$(realpath "$1")
constraints=$(realpath "$(dirname "$0")/../constraints.txt")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

echo "installing $(basename "$wheel") into a clean environment ..."
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet -c "$constraints" torch
venv/bin/python -m pip install --quiet -c "$constraints" "$wheel[demo]"
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false QSFT_HOME="$folder/home"
unset PYTHONPATH

python -c 'import qsft, sys; assert qsft.__file__.startswith(sys.prefix), qsft.__file__'
qsft --version
qsft targets target_sft
qsft demo --quick --targets sft target_sft --output_dir demo
test -s demo/index.html && test -s demo/accuracy.png && test -s demo/results.json

# The packaged recipes and launch configurations, with the demo's models and a few rows in place of the hub's.
base=$(dirname "$(find home -path '*base-*' -name config.json)")
for i in 1 2 3 4; do echo '{"extra_info": {"question": "1 + 2 =", "answer": "3"}}'; done >rows.jsonl
words=(--model_name_or_path "$base" --teacher_model_name_or_path "$base" --data_dir rows.jsonl --global_batch_size 2
  --max_length 64 --gradient_checkpointing false --bf16 false --dtype float32 --use_cpu true)
qsft train numina_qwen_math_1p5b "${words[@]}" --dry_run
qsft train numina_qwen_math_1p5b "${words[@]}" --accelerate_config cpu --num_processes 1 --disable_tqdm true
test -s runs/numina_qwen_math_1p5b-target_sft/model.safetensors
echo "the wheel works"
