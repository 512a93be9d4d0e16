"""DFlash and DFlash 2: block drafters, which guess several tokens in one pass.

A small network sees hidden states of the target for all committed tokens, and a block: the pending token and mask
tokens. What it puts out for the masks becomes, with the target's own head, the odds of the next tokens. DFlash
(arXiv:2602.06036) takes the slots of a block for independent; DFlash 2 adds convolutions over the block, and a selector
that scores each candidate of a slot together with each of the slot before.
"""

from worker.engine.drafters.dflash.config import DFlashConfig, read_dflash_config
from worker.engine.drafters.dflash.drafter import DFlashDrafter, load_dflash
from worker.engine.drafters.dflash.settings import DFlashSettings

__all__ = ["DFlashConfig", "DFlashDrafter", "DFlashSettings", "load_dflash", "read_dflash_config"]
