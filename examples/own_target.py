"""Train with a target of your own. Its trust is γ = √p_y, and the teacher guides its residual.

accelerate launch examples/own_target.py --model_name_or_path Qwen/Qwen3-0.6B \
    --teacher_model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --dataset_name trl-lib/Capybara --output_dir runs/own
"""

from datasets import load_dataset
from torch import Tensor
from trl import ModelConfig, ScriptArguments, TrlParser

from qsft import Target, TargetSFTConfig, TargetSFTTrainer, TokenView
from qsft.targets.residual import Guided


def cautious(view: TokenView) -> Tensor:
    """γ = √p_y: between SFT (γ = 1) and Target-SFT (γ = p_y)."""
    return (0.5 * view.label_logp).exp()


def main() -> None:
    parser = TrlParser((ScriptArguments, TargetSFTConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()

    trainer = TargetSFTTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        target=Target(trust=cautious, residual=Guided(eta=0.5)),
        train_dataset=load_dataset(script_args.dataset_name, split=script_args.dataset_train_split),
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    main()
