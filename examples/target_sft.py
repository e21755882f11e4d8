"""Train with Target-SFT, or with any other target.

accelerate launch examples/target_sft.py --config examples/target_sft.yaml

Every key of the YAML file is also an option: `--target dft --learning_rate 1e-5`.
"""

from datasets import load_dataset
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config

from qsft import TargetSFTConfig, TargetSFTTrainer


def main() -> None:
    parser = TrlParser((ScriptArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    dataset = load_dataset(script_args.dataset_name, name=script_args.dataset_config)
    evaluate = training_args.eval_strategy != "no"

    trainer = TargetSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if evaluate else None,
        peft_config=get_peft_config(model_args),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)


if __name__ == "__main__":
    main()
