"""Pictures on their way through the vision tower of Qwen2.5-VL: decoded, cut into patches, seen."""
