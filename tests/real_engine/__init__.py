"""Real SGLang and real vLLM on the CPU, driven by the plugin alone, in the environments of ``tools/real_engines``."""
