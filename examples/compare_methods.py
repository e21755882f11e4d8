"""Train the same student with three targets, evaluate each, and print one table.

python examples/compare_methods.py --dataset_name train.jsonl --test_file test.jsonl \
    --model_name_or_path Qwen/Qwen3-0.6B --teacher_model_name_or_path Qwen/Qwen3-4B-Instruct-2507 \
    --output_dir runs/compare

Both files have the columns problem and answer. `qsft sweep` does the same for recipes. A killed sweep continues.
"""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
from trl import ModelConfig, ScriptArguments, TrlParser

from qsft import TargetSFTConfig, TargetSFTTrainer, evaluate

TARGETS = ("sft", "dft", "target_sft")
SAMPLES = 4  # responses per problem
MAX_NEW_TOKENS = 512


@dataclass
class CompareArguments(ScriptArguments):
    """TRL's arguments of a script, and the problems to evaluate on."""

    test_file: str = field(default="test.jsonl", metadata={"help": "JSONL file with the test problems."})


def main() -> None:
    parser = TrlParser((CompareArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    dataset = Dataset.from_json(script_args.dataset_name).rename_columns({"problem": "prompt", "answer": "completion"})

    accuracy = {}
    for target in TARGETS:
        args = copy(training_args)
        args.output_dir = str(Path(training_args.output_dir, target))
        trainer = TargetSFTTrainer(
            model=model_args.model_name_or_path,
            args=args,
            target=target,
            train_dataset=dataset,
        )
        trainer.train()
        trainer.save_model(args.output_dir)
        report = evaluate(
            args.output_dir, script_args.test_file, prompt="plain", num_samples=SAMPLES, max_new_tokens=MAX_NEW_TOKENS
        )
        accuracy[target] = report.accuracy(Path(script_args.test_file).stem)

    print(f"{'target':<12} Average@{SAMPLES}")
    for target, value in accuracy.items():
        print(f"{target:<12} {100 * value:.1f}")


if __name__ == "__main__":
    main()
