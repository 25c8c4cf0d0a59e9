"""Import this first where many modules are imported: garbage is then looked for seldom.

Imports make a million objects that stay; to look through them again and again takes 0.2 s.
"""

import gc

gc.set_threshold(100_000, 50, 50)
