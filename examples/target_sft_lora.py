"""Train a LoRA adapter with Target-SFT. The teacher is the model itself, without the adapter.

accelerate launch examples/target_sft_lora.py --model_name_or_path Qwen/Qwen2.5-1.5B-Instruct \
    --dataset_name trl-lib/Capybara --learning_rate 2e-4 --output_dir runs/capybara-lora

To use another teacher, add --teacher_model_name_or_path Qwen/Qwen2.5-7B-Instruct.
"""

from datasets import load_dataset
from peft import LoraConfig
from trl import ModelConfig, ScriptArguments, TrlParser

from qsft import TargetSFTConfig, TargetSFTTrainer


def main() -> None:
    parser = TrlParser((ScriptArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()

    trainer = TargetSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        teacher=training_args.teacher_model_name_or_path or "base",
        train_dataset=load_dataset(script_args.dataset_name, split=script_args.dataset_train_split),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
