from arpo.models.names import checkpoint_name


def test_module_names_and_checkpoint_names_are_the_same_tensor() -> None:
    assert checkpoint_name("model.language_model.norm.weight") == "model.norm.weight"
    assert checkpoint_name("model.visual.merger.weight") == "visual.merger.weight"
    assert checkpoint_name("lm_head.weight") == "lm_head.weight"
