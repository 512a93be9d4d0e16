"""The multi-token prediction (MTP) head that Qwen3.5, 3.6 and 3.8 models are trained with, as a drafter.

`find_mtp` says whether a directory carries a head, `load_mtp` reads it for a target, `MtpDrafter` drafts with it.
"""

from worker.engine.drafters.mtp.drafter import EXPANSION, MtpDrafter
from worker.engine.drafters.mtp.head import MtpHead
from worker.engine.drafters.mtp.loading import load_mtp
from worker.engine.drafters.mtp.manifest import HiddenState
from worker.engine.drafters.mtp.source import MtpSource, find_mtp

__all__ = ["EXPANSION", "HiddenState", "MtpDrafter", "MtpHead", "MtpSource", "find_mtp", "load_mtp"]
