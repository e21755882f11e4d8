"""Train on a JSONL file with columns of your own: {"problem": "1 + 2 ?", "solution": "3"}.

python examples/own_data.py --dataset_name my.jsonl --model_name_or_path Qwen/Qwen3-0.6B \
    --teacher_model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --output_dir runs/mine
"""

from typing import Any

from datasets import Dataset
from trl import ModelConfig, ScriptArguments, TrlParser

from qsft import TargetSFTConfig, TargetSFTTrainer


def to_conversation(row: dict[str, Any]) -> dict[str, Any]:
    """A prompt and a completion in the chat format; only the completion is trained."""
    return {
        "prompt": [{"role": "user", "content": row["problem"]}],
        "completion": [{"role": "assistant", "content": row["solution"]}],
    }


def main() -> None:
    parser = TrlParser((ScriptArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    rows = Dataset.from_json(script_args.dataset_name)
    dataset = rows.map(to_conversation, remove_columns=rows.column_names)

    trainer = TargetSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=dataset,
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
