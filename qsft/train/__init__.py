"""TargetSFTTrainer, the subclass of TRL's SFTTrainer, and the parts it is composed of."""
