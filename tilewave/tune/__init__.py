"""Which tile, which order: chosen from a space, with legality counted, a time predicted and a reason said."""
