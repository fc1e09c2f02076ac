"""MiniWoB++ pages in headless Chromium."""
