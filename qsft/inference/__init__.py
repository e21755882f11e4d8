"""Running models: loading them, starting a vLLM engine, and sampling responses with transformers or vLLM."""
