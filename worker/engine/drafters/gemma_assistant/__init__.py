"""The Gemma-4 assistant: a few layers that read the target's own keys and values, and step from its hidden state."""

from worker.engine.drafters.gemma_assistant.drafter import AssistantSettings, GemmaAssistantDrafter
from worker.engine.drafters.gemma_assistant.loading import load_gemma_assistant

__all__ = ["AssistantSettings", "GemmaAssistantDrafter", "load_gemma_assistant"]
