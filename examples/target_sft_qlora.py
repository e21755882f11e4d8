"""Train a LoRA adapter on a model in 4 bits, with a teacher in 4 bits. This script needs bitsandbytes.

accelerate launch examples/target_sft_qlora.py --model_name_or_path Qwen/Qwen2.5-7B \
    --teacher_model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name trl-lib/Capybara \
    --learning_rate 2e-4 --output_dir runs/capybara-qlora
"""

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import ModelConfig, ScriptArguments, TrlParser

from qsft import TargetSFTConfig, TargetSFTTrainer


def main() -> None:
    parser = TrlParser((ScriptArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16 if training_args.bf16 else torch.float32,
    )
    # A quantized teacher has a cache of its own.
    training_args.teacher_model_init_kwargs = {"quantization_config": four_bits}

    trainer = TargetSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=load_dataset(script_args.dataset_name, split=script_args.dataset_train_split),
        quantization_config=four_bits,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
