# Chromium's own sandbox wants user namespaces or root, and a desktop has neither: the container is the sandbox.
# --test-type leaves out the banner that says so; the others keep it from looking for a network that is closed.
export CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --test-type --disable-background-networking --disable-component-update"
