"""Check the shapes in the annotations of `arpo.algorithms` at every call, in tests only."""

import jaxtyping

jaxtyping.install_import_hook(["arpo.algorithms"], "beartype.beartype")
