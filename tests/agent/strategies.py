"""Hypothesis strategies for actions and the text around them."""

import string
from functools import partial

from hypothesis import strategies as st

from arpo.agent import actions, phone
from arpo.agent.actions import MAX_COORDINATE
from arpo.agent.keys import KEYS

coordinates = st.one_of(
    st.integers(-3000, 3000).map(float),
    st.floats(-MAX_COORDINATE, MAX_COORDINATE, allow_nan=False, allow_infinity=False),
)
keys = st.sampled_from(sorted(KEYS))
lower_keys = st.sampled_from(sorted(key for key in KEYS if key == key.lower()))
texts = st.one_of(
    st.text(),
    st.text(alphabet="'\"\\nrt \n\r\t(),=ab"),
    st.lists(
        st.sampled_from(
            ["Action: ", "\nAction:", "type(content='", "')", "\n\n", "\\n", "'", '"', "it's", "Thought:", "é"]
        )
    ).map("".join),
)

pointed = st.one_of(
    [
        st.builds(partial(actions.Click, button=button, count=count), coordinates, coordinates)
        for button, count in actions.CLICKS
    ]
    + [st.builds(actions.Hover, coordinates, coordinates)]
)
directions = st.sampled_from(["up", "down", "left", "right"])
hotkeys = st.one_of(
    st.builds(actions.Hotkey, st.tuples(keys)),
    st.builds(actions.Hotkey, st.lists(lower_keys, min_size=2, max_size=4).map(tuple)),
)
any_action = st.one_of(
    pointed,
    st.builds(actions.Drag, coordinates, coordinates, coordinates, coordinates),
    st.builds(actions.Drag, st.none(), st.none(), coordinates, coordinates),
    st.sampled_from([actions.Click(None, None, button, count) for button, count in actions.CLICKS]),
    st.builds(actions.Scroll, directions),
    st.builds(actions.Scroll, directions, coordinates, coordinates),
    hotkeys,
    st.builds(actions.Press, keys),
    st.builds(actions.KeyDown, keys),
    st.builds(actions.KeyUp, keys),
    st.builds(actions.TypeText, texts),
    st.builds(actions.Finished, texts),
    st.sampled_from([actions.Wait(), actions.CallUser(), actions.Fail()]),
)

scalars = st.one_of(
    texts, st.booleans(), st.integers(1 - 10**15, 10**15 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
argument_names = st.from_regex(r"\w{1,20}", fullmatch=True).filter(lambda name: name != "function")
calls = st.builds(actions.Call, texts.filter(bool), st.dictionaries(argument_names, scalars, max_size=4))

plain_text = st.text(alphabet=string.ascii_letters + string.digits + " .,:;!?@#/-_", min_size=1).filter(
    lambda text: not text.startswith(" ")
)

phone_actions = st.one_of(
    st.builds(phone.Swipe, coordinates, coordinates, coordinates, coordinates),
    st.builds(phone.LongPress, coordinates, coordinates),
    st.builds(phone.OpenApp, texts),
    st.sampled_from([phone.Back(), phone.Home()]),
)
